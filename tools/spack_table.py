"""Write docs/reference/spack-sites.md: for which sites and stacks Spack's environment is whole, and concretizes.

Usage: python tools/spack_table.py > docs/reference/spack-sites.md
       python tools/spack_table.py --spack ROOT --packages CLONE [SITE...]   (concretizes each; hours for all sites)
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml

from hidl_cli.errors import HidlError
from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.site.checks import RULES
from hidl_cli.site.schema import Site
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.providers.spack import call
from hidl_cli.stack.providers.spack.environment import Environment, environment
from hidl_cli.stack.providers.spack.instance import Instance, find
from hidl_cli.stack.providers.spack.places import places
from hidl_cli.stack.schema import Stack

STACKS = ("mpi", "omb", "mpi4dask", "horovod")
_HEAD = """\
# Sites and Spack

<!-- Written by tools/spack_table.py; change the files in site_configs/ and recipes/stacks/ instead. -->

What Spack is given for each site: the MPI library, in bold where it is the site's own (an external) and otherwise built
or unpacked by Spack, the compilers, and what the public sources at hand leave open. Nothing is guessed: an external
without a version is not given to Spack, and a compiler that nobody names is searched for by nobody. People at a site
fill these in with a [file of their own](../how-to/install-with-spack.md), and hold it against the machine with
`hidl site check --on-host`.

"""
_UNTRIED = """\
Whether each environment concretizes is not said here: this page was written without Spack
(`python tools/spack_table.py --spack ROOT --packages CLONE` asks it).

"""


def text(instance: Instance | None, names: list[str]) -> str:
    """The whole page; with a Spack, a column for each stack says whether it concretizes, or why not."""
    known = [entry.name for entry in list_all("site") if entry.origin == "shipped" and entry.name != "local"]
    sites = [load(RULES, name) for name in (names or known)]
    stacks = [load_stack(name) for name in STACKS] if instance else []
    columns = ["site", "MPI library", "compilers", "left open", *(stack.name for stack in stacks)]
    rows = [_row(site, stacks, instance) for site in sites]
    head = _HEAD if instance else _HEAD + _UNTRIED
    return head + "".join(map(_line, [columns, ["---"] * len(columns), *rows]))


def _row(site: Site, stacks: list[Stack], instance: Instance | None) -> list[str]:
    made = _environment(site, load_stack("mpi"))
    mpi = " ".join(filter(None, (made.mpi, made.mpi_version)))
    compilers = ", ".join(f"{one.package} {one.version or '?'}" for one in site.compilers.values())
    return [
        f"`{site.name}`",
        f"**{mpi}**" if made.external_mpi else mpi,
        compilers or "unknown",
        "; ".join(made.gaps),
        *(_concretizes(site, stack, instance) for stack in stacks if instance),
    ]


def _environment(site: Site, stack: Stack) -> Environment:
    where = places(site, Path(tempfile.gettempdir(), "hidl-table"))
    return environment(site, stack, where, view=Path(tempfile.gettempdir(), "hidl-table", "view"), release=(1, 2))


def _concretizes(site: Site, stack: Stack, instance: Instance) -> str:
    """``yes``, or the first line of Spack's error. The site's processor need not be that of this machine."""
    with tempfile.TemporaryDirectory(prefix="hidl-table-") as directory:
        place, log = Path(directory), Path(directory, "log")
        log.touch()
        document = dict(_environment(site, stack).document["spack"])
        document["concretizer"] = {**document["concretizer"], "targets": {"host_compatible": False}}
        (place / "spack.yaml").write_text(yaml.safe_dump({"spack": document}), encoding="utf-8")
        command = call.step(instance, place, "concretize", "concretize", python=None, offline=True)
        try:
            call.run(command, log, doing="no")
        except HidlError as error:
            return error.message.replace("\n", " ").replace("|", "/")[:200]
        return "yes"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sites", nargs="*")
    parser.add_argument("--spack")
    parser.add_argument("--packages")
    return parser.parse_args()


if __name__ == "__main__":
    asked = _arguments()
    if asked.packages:
        os.environ["HIDL_SPACK_PACKAGES"] = asked.packages
    spack = find(load(RULES, "local"), Path(asked.spack), os.environ) if asked.spack else None
    print(text(spack, asked.sites), end="")
