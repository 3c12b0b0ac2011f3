"""Write docs/reference/spack-sites.md: for which sites and stacks Spack's environment is whole, and concretizes.

Usage: python tools/spack_table.py > docs/reference/spack-sites.md
       python tools/spack_table.py --spack ROOT --packages CLONE [SITE...]   (asks Spack, and notes what it says)

What Spack said is kept in docs/reference/spack-sites.json, cell by cell, so it can be stopped and gone on with; a cell
whose environment is another one since counts as not tried.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from hidl_cli import documents, process
from hidl_cli.errors import HidlError, ProcessFailed
from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Mpi, Site
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.providers.spack import call, lock
from hidl_cli.stack.providers.spack.environment import Environment, environment
from hidl_cli.stack.providers.spack.host import Instance, find, places
from hidl_cli.stack.schema import Stack

STACKS = ("mpi", "omb", "mpi4dask", "hyparflow", "horovod")
SAID = Path(__file__).parent.parent / "docs" / "reference" / "spack-sites.json"
#: Seconds of a processor that Spack gets for one cell.
PATIENCE = 900
_NO_ANSWER = "Spack found no answer"

_HEAD = """\
# Sites and Spack

<!-- Written by tools/spack_table.py; change the files in site_configs/ and recipes/stacks/ instead. -->

What Spack is given for each site: the MPI library, in bold where it is the site's own (an external) and otherwise built
or unpacked by Spack, the compilers, and what the public sources at hand leave open. Nothing is guessed: an external
without a version is not given to Spack. On the site itself, `hidl install` [asks the
machine](../how-to/describe-a-site.md#what-the-machine-itself-reports) for what is open and keeps it in the user's own
file; `hidl site check --on-host` holds that file against the machine.

"""
_ASKED = """
## What concretizes

For the sites whose compilers are known: with the site's default MPI library, its others of known versions, and
MVAPICH2-GDR where the site has CUDA. A number is that of the packages that Spack would install, externals apart; a
letter leads to the reason below.

Asked of Spack {spack} with spack-packages {packages} on {date}, without a network, on another machine than these:
`python tools/spack_table.py --spack ROOT --packages CLONE`. Versions, variants, targets and requirements are those of
the site. The places are not: Spack runs the compilers and asks the modules while it concretizes, so this machine's GCC
stood for theirs, and invented prefixes for their modules. Spack was given the family of the site's processors: without
that it ends with an internal error where they are not this machine's.

A site whose compiler is too old for TensorFlow can have it as a wheel: `spack: {{wheels: true}}` in a file of your own
leaves MPI and what is built on it to Spack. Where Fortran is missing, name the compiler's (`fortran`), or an RPM of
MVAPICH2-GDR ([how](../how-to/install-with-spack.md)).

"""


@dataclass(frozen=True)
class Case:
    """A site with one of its MPI libraries."""

    site: Site
    mpi: str


def cases(site: Site) -> Iterator[Case]:
    """What is asked for a site: its default MPI library, others of known versions, MVAPICH2-GDR where it has CUDA."""
    if not any(compiler.version for compiler in site.compilers.values()):
        return
    libraries = dict(site.mpi)
    names = [site.default_mpi] if site.default_mpi else []
    names += [name for name, library in libraries.items() if library.version]
    if "cuda" in site.externals:
        libraries.setdefault("mvapich2-gdr", Mpi(family="mvapich2-gdr"))
        names.append("mvapich2-gdr")
    for name in dict.fromkeys(names):
        yield Case(site.model_copy(update={"mpi": libraries, "default_mpi": name}), name)


def page(sites: list[Site], said: dict[str, Any]) -> str:
    """The whole page, from the sites' files and what Spack said of them."""
    rows = [_row(site) for site in sites]
    text = _HEAD + _table(["site", "MPI library", "compilers", "left open"], rows)
    reasons: list[str] = []
    asked = [
        [f"`{site.name}`", case.mpi, *(_cell(case, name, said, reasons) for name in STACKS)]
        for site in sites
        for case in cases(site)
    ]
    text += _ASKED.format(**{key: said.get(key, "?") for key in ("spack", "packages", "date")})
    text += _table(["site", "MPI library", *STACKS], asked)
    return text + "".join(f"\n- **{_letter(number)}** {reason}" for number, reason in enumerate(reasons)) + "\n"


def ask(instance: Instance, sites: list[Site]) -> None:
    """Ask Spack what is not known yet, and note each answer at once."""
    where = places(sites[0], Path(tempfile.gettempdir(), "hidl-table"))
    assert where.builtin is not None
    for name in STACKS:  # the small ones first
        for case in (case for site in sites for case in cases(site)):
            said = _said()
            made, key = _environment(case.site, load_stack(name)), f"{case.site.name} {case.mpi} {name}"
            if said["cells"].get(key, {}).get("inputs") == made.inputs:
                continue
            print(f"{key}: ", end="", file=sys.stderr, flush=True)
            answer = {"why": made.lacks_mpi} if made.lacks_mpi else _answer(made, instance, _machine(case.site))
            print(answer, file=sys.stderr, flush=True)
            said["cells"][key] = {"inputs": made.inputs, **answer}
            said |= {"spack": instance.version, "packages": _release(where.builtin), "date": f"{date.today()}"}
            documents.write_text(SAID, json.dumps(said, indent=1, sort_keys=True) + "\n")


def _answer(made: Environment, instance: Instance, machine: str) -> dict[str, Any]:
    """``packages``, how many would be installed on a ``machine`` of that kind, or ``why`` there is no answer."""
    with tempfile.TemporaryDirectory(prefix="hidl-table-") as directory:
        place, log = Path(directory), Path(directory, "log")
        log.touch()
        # Unsorted: of two repositories that know a package, the first has it.
        (place / "spack.yaml").write_text(yaml.safe_dump(_here(made, machine), sort_keys=False), encoding="utf-8")
        # Spack builds for processors of the family that Python says it runs on: it is told the site's.
        told = f"import platform\nplatform.machine = lambda: {machine!r}\n"
        (place / "sitecustomize.py").write_text(told, encoding="utf-8")
        command = call.step(instance, place, "concretize", "concretize", python=None, offline=True)
        command = dataclasses.replace(
            command,
            argv=("prlimit", f"--cpu={PATIENCE}:", *command.argv),
            variables={**command.variables, "PYTHONPATH": str(place)},
        )
        try:
            call.run(command, log, doing="no")
        except HidlError as error:
            cause = error.__cause__
            if isinstance(cause, ProcessFailed) and cause.status == 128 + signal.SIGXCPU:  # as a shell says it
                return {"why": f"{_NO_ANSWER} within {PATIENCE // 60} minutes of a processor"}
            return {"why": _reason(error.message)}
        nodes = lock.content_of(place / "spack.lock")["concrete_specs"].values()
        return {"packages": sum("external" not in node for node in nodes)}


def _machine(site: Site) -> str:
    """The family of the site's processors, as Python names it."""
    return site.node_type().arch or platform.machine()


def _here(made: Environment, machine: str) -> dict[str, Any]:
    """The environment for a machine that is not the site: with places that Spack can look at.

    What the packages say of themselves may differ with the ``machine``: each kind gets a cache of its own.
    """
    spack = json.loads(json.dumps(made.document["spack"]))
    spack["concretizer"]["targets"] = {"host_compatible": False}
    spack["config"]["misc_cache"] = str(Path(tempfile.gettempdir(), "hidl-table", machine))
    programs = {"c": shutil.which("gcc"), "cxx": shutil.which("g++"), "fortran": shutil.which("gfortran")}
    for name, entry in spack["packages"].items():
        for external in entry.get("externals", []):
            external.pop("modules", None)
            external["prefix"] = external.get("prefix", f"/site/{name}")
            compilers = external.get("extra_attributes", {}).get("compilers", {})
            compilers.update({language: programs[language] or f"/usr/bin/{language}" for language in compilers})
    return {"spack": spack}


def _reason(message: str) -> str:
    """The first of the reasons that Spack counts, or the first line of its error."""
    reasons = re.findall(r"^\s*1\. (.+)$", message, re.MULTILINE)
    lines = [line.strip() for line in message.splitlines()]
    return (reasons or lines[1:] or lines)[0].partition(". You could consider setting")[0].replace("|", "/")


def _cell(case: Case, name: str, said: dict[str, Any], reasons: list[str]) -> str:
    known, made = said["cells"].get(f"{case.site.name} {case.mpi} {name}"), _environment(case.site, load_stack(name))
    if known is None or known["inputs"] != made.inputs:
        return "not tried"
    if "packages" in known:
        return f"yes, {known['packages']}"
    reason = "; ".join([known["why"].rstrip("."), *made.gaps])
    if reason not in reasons:
        reasons.append(reason)
    verdict = "unknown" if reason.startswith(_NO_ANSWER) else "no"
    return f"{verdict} ({_letter(reasons.index(reason))})"


def _letter(number: int) -> str:
    return chr(ord("a") + number)


def _row(site: Site) -> list[str]:
    made = _environment(site, load_stack("mpi"))
    mpi = " ".join(filter(None, (made.mpi, made.mpi_version)))
    compilers = ", ".join(f"{one.package} {one.version or '?'}" for one in site.compilers.values())
    return [
        f"`{site.name}`",
        f"**{mpi}**" if made.external_mpi else mpi,
        compilers or "unknown",
        "; ".join(made.gaps),
    ]


def _environment(site: Site, stack: Stack) -> Environment:
    where = places(site, Path(tempfile.gettempdir(), "hidl-table"))
    return environment(site, stack, where, view=Path(tempfile.gettempdir(), "hidl-table", "view"), release=(1, 2))


def _release(builtin: Path) -> str:
    """The clone's release, or what lies between it and the last one."""
    return process.run(("git", "-C", builtin, "describe", "--tags", "--always")).stdout.strip()


def _said() -> dict[str, Any]:
    return json.loads(SAID.read_text(encoding="utf-8")) if SAID.is_file() else {"cells": {}}


def _table(columns: list[str], rows: Iterable[list[str]]) -> str:
    return "".join("| " + " | ".join(cells) + " |\n" for cells in (columns, ["---"] * len(columns), *rows))


def main() -> None:
    """Ask where a Spack is named; else write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sites", nargs="*")
    parser.add_argument("--spack")
    parser.add_argument("--packages")
    asked = parser.parse_args()
    shipped = [entry.name for entry in list_all("site") if entry.origin == "shipped" and entry.name != "local"]
    sites = [load(RULES, name) for name in (asked.sites or shipped)]
    if asked.spack:
        os.environ["HIDL_SPACK_PACKAGES"] = asked.packages
        ask(find(sites[0], Path(asked.spack), os.environ), sites)
    else:
        print(page(sites, _said()), end="")


if __name__ == "__main__":
    main()
