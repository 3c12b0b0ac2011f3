"""``hidl tuning``: the run-time variables of MPI libraries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hidl_cli.commands.arguments import JsonOption
from hidl_cli.commands.completers import complete_variables

app = typer.Typer(no_args_is_help=True, help="The run-time variables of MPI libraries.")


def complete_families(incomplete: str) -> list[str]:
    """Complete MPI families."""
    from hidl_cli.mpi import FAMILIES

    return [family for family in FAMILIES if family.startswith(incomplete)]


@app.command("list")
def list_(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Part of a name or meaning, or a pattern such as 'MV2_CUDA_*'."),
    ] = None,
    mpi: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY[@VERSION]",
            help="Only variables that this MPI library reads.",
            autocompletion=complete_families,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List variables: values, readers and meaning."""
    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_table
    from hidl_cli.tuning.describe import format_rows, list_variables

    documents = list_variables(pattern, mpi)
    if json:
        emit_json("hidl.tuning-list/1", variables=documents)
    else:
        show_table(format_rows(documents, mpi), whole=("name", "versions"))


@app.command()
def explain(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Variables, by any name.", autocompletion=complete_variables),
    ],
    json: JsonOption = False,
) -> None:
    """Explain variables: type, default, readers, meaning, origin, counterparts, presets and sites."""
    from hidl_cli.commands.render import emit_json, stdout
    from hidl_cli.site.tuned import list_settings
    from hidl_cli.tuning.catalogue import names_of
    from hidl_cli.tuning.describe import explain_variable

    documents = [explain_variable(name) | {"sites": list_settings(names_of(name))} for name in names]
    if json:
        emit_json("hidl.tuning/1", variables=documents)
        return
    for index, document in enumerate(documents):
        if index:
            stdout().print()
        _show(document)


def _show(document: dict[str, Any]) -> None:
    from hidl_cli.commands.render import stdout
    from hidl_cli.commands.tables import show_table
    from hidl_cli.tuning.describe import format_readers

    stdout().print(document["name"], style="bold", markup=False)
    for row in document["variables"]:
        rows = {
            "read by": format_readers(row["readers"]),
            "takes": row["takes"],
            "default": row["default"] or "unknown, or chosen by the library",
            "does": row["meaning"] + (" (its name, spelled out)" if row["meaning_from"] == "name" else ""),
            "known from": row["provenance"],
        }
        if row["name"] != document["name"] or row["also"]:
            rows["names"] = ", ".join([row["name"], *row["also"]])
        _show_pairs(rows)
    if document["pattern"]:
        pattern = document["pattern"]
        _show_pairs(
            {
                "read by": ", ".join(pattern["families"]),
                "takes": f"any value: every {pattern['prefix']}* is accepted",
                "does": pattern["meaning"],
                "known from": pattern["provenance"],
            }
        )
    if document["counterparts"]:
        show_table(
            [
                {"counterpart on": ", ".join(other["families"]), "variable": other["variable"], "": other["how"]}
                for other in document["counterparts"]
            ],
            whole=("variable",),
        )
    setters = [
        {"set by": f"preset of {preset['family']}", "to": preset["value"], "": preset["when"]}
        for preset in document["presets"]
    ]
    setters += [
        {"set by": f"site {site['site']}, {site['mpi']}", "to": site["value"], "": site["why"]}
        for site in document["sites"]
    ]
    if setters:
        show_table(setters)


def _show_pairs(pairs: dict[str, str]) -> None:
    from hidl_cli.commands.tables import show_table

    show_table([{"": key, " ": value} for key, value in pairs.items()])
