"""``hidl tuning``: list, explain and save run-time variables of MPI libraries."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hidl_cli.commands.arguments import JsonOption, RunArgument
from hidl_cli.commands.completion import complete_variables
from hidl_cli.commands.render import emit_json, say, show_table, stdout
from hidl_cli.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="List, explain and save run-time variables of MPI libraries.")


def complete_families(incomplete: str) -> list[str]:
    """Complete MPI families."""
    from hidl_cli.mpi import FAMILIES

    return [family for family in FAMILIES if family.startswith(incomplete)]


@app.command("list")
def list_(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Part of a name or description, or a pattern such as 'MV2_CUDA_*'."),
    ] = None,
    mpi: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY[@VERSION]",
            help="Only variables of this MPI library.",
            autocompletion=complete_families,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List variables with their values, MPI libraries and descriptions."""
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
        typer.Argument(
            metavar="NAME...",
            help="Names of variables; alternative names are accepted.",
            autocompletion=complete_variables,
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Explain variables: type, default, MPI libraries, description, source, counterparts, presets and sites."""
    from hidl_cli.site.record import list_settings
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


@app.command()
def save(run: RunArgument = None) -> None:
    """Save the best setting of a run's --matrix over mpi.VARIABLE in your site file."""
    save_winner(run)


def save_winner(name: str | None) -> None:
    """Save the winner of a run's comparison (default: the last run) in the user's file for the run's site."""
    from hidl_cli.plan.launch_plan import plan_of
    from hidl_cli.record import find
    from hidl_cli.site.record import save_tuning
    from hidl_cli.site.yamledit import MEASURED
    from hidl_cli.tuning.judge import compared_variables

    run = find(name)
    plan, ranking = plan_of(run), (run.document("verdict") or {}).get("ranking") or {}
    if "winner" not in ranking:
        raise UsageError(
            f"run {run.id} compared no variables, or has no verdict",
            hint=f"to get a verdict, run: hidl resume {run.id}",
        )
    if ranking["winner"] is None:
        say("tuning not saved: no setting is better than the default")
        return
    if worse := ", ".join(f"{size} B" for size in ranking["worse_at"]):
        raise UsageError(
            f"tuning not saved: the best setting is worse than the default at {worse}",
            hint="compare only the sizes that you need",
        )
    if tuned := [setting.name for setting in plan.tuning if setting.origin == "--tune"]:
        raise UsageError(
            f"tuning not saved: the run was measured with --tune {', '.join(tuned)}, "
            "which the site file does not contain",
            hint="add that setting to the site file first, or compare without it",
        )
    variables = compared_variables(ranking["winner"])
    gpus = bool(plan.allocation.gpus_per_node)
    file = save_tuning(plan.site, plan.mpi, variables, gpus=gpus, why=f"{MEASURED}{run.id}: {ranking['gain']}")
    say(f"saved {' '.join(f'{name}={value}' for name, value in variables.items())} in {file}")


def _show(document: dict[str, Any]) -> None:
    from hidl_cli.tuning.describe import format_readers

    stdout().print(document["name"], style="bold", markup=False)
    for row in document["variables"]:
        rows = {
            "read by": format_readers(row["readers"]),
            "values": row["takes"],
            "default": row["default"] or "unknown, or chosen by the library",
            "description": row["meaning"] + (" (derived from its name)" if row["meaning_from"] == "name" else ""),
            "source": row["provenance"],
        }
        if row["name"] != document["name"] or row["also"]:
            rows["names"] = ", ".join([row["name"], *row["also"]])
        _show_pairs(rows)
    if document["pattern"]:
        pattern = document["pattern"]
        _show_pairs(
            {
                "read by": ", ".join(pattern["families"]),
                "values": f"any: every {pattern['prefix']}* is accepted",
                "description": pattern["meaning"],
                "source": pattern["provenance"],
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

    show_table([{"": key, " ": value} for key, value in pairs.items()])
