"""The rules of every run, inside its job and before its program starts.

They cost milliseconds, start nothing, and stop nothing: what they find goes to stderr, one line each, and to the file
``$HIDL_FINDINGS``. Whatever goes wrong here must not be the end of a run that would have worked.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_workloads import launched, mpi_library, streams
from hidl_workloads.doctor import node, nodes, ranks, record
from hidl_workloads.doctor.finding import Finding, worst_first
from hidl_workloads.doctor.ranks import World

if TYPE_CHECKING:
    from mpi4py import MPI

FINDINGS = "HIDL_FINDINGS"
"""The file that findings are added to; none: they are told on stderr alone."""
CORES_PER_RANK = "HIDL_CORES_PER_RANK"
"""How many cores each rank was to be bound to; not set: binding was not asked for."""
NODE_MEMORY = "HIDL_NODE_MEMORY"
"""The bytes of memory of each node that the placement counts on."""

_PRECEDENCE_SECONDS = 0.2


def before_mpi() -> node.Node | None:
    """Tell what may end this process in ``MPI_Init``, which leaves no word.

    The first rank of each node does; so does any other that gets as far as ``MPI_Init`` before it, for a rank that dies
    there takes the first one along. Returns what the first rank learnt of its node; None on others, and where it cannot
    be learnt.
    """
    with suppress(Exception):
        first = is_first_of_its_node(os.environ)
        wanted = os.environ.get(NODE_MEMORY, "")
        here = node.probe(wanted_memory=int(wanted) if wanted.isdecimal() else None)
        # A library that is here before MPI is imported was preloaded.
        preloaded = ranks.RULES.findings(World((ranks.this_rank(0, 1),)))
        errors = [each for each in (*node.RULES.findings(here), *preloaded) if each.severity == "error"]
        if errors and not first:
            errors = _left_to_others(errors)
        tell(errors)
        return here if first else None
    return None


def _left_to_others(errors: list[Finding]) -> list[Finding]:
    """Those that the first rank of the node has not told a little later; none where there is no file to see it in."""
    time.sleep(_PRECEDENCE_SECONDS)
    file = os.environ.get(FINDINGS)
    told = {(each.rule, each.where) for each in record.read(Path(file))} if file else set()
    return [each for each in errors if file and (each.rule, each.where) not in told]


def with_mpi(world: MPI.Comm, here: node.Node | None) -> None:
    """Let all rules judge all ranks and nodes, on rank 0; collective, with ``here`` from ``before_mpi``."""
    mine = ""  # as text: another version of this module, on another node, may write what this one cannot read
    with suppress(Exception):
        rank = ranks.this_rank(world.rank, world.size, version=mpi_library.version())
        mine = json.dumps([rank.to_json(), asdict(here) if here else None])
    everyone = world.gather(mine)
    if everyone is None:
        return
    with suppress(Exception):
        told = [each for text in everyone for each in _read(text)]
        bound = os.environ.get(CORES_PER_RANK, "")
        of_world = World(tuple(rank for rank, _ in told), cores_per_rank=int(bound) if bound.isdecimal() else None)
        places = tuple(place for _, place in told if place is not None)
        of_each = (finding for place in places for finding in node.RULES.findings(place))
        untold = [finding for finding in of_each if finding.severity != "error"]
        tell(worst_first([*ranks.RULES.findings(of_world), *nodes.RULES.findings(nodes.Nodes(places)), *untold]))


def _read(text: str) -> Iterator[tuple[ranks.Rank, node.Node | None]]:
    """What a rank told of itself and its node; nothing where that is not understood."""
    with suppress(Exception):
        rank, place = json.loads(text)
        yield ranks.Rank.from_json(rank), node.Node.from_facts(place) if place else None


def tell(findings: Iterable[Finding]) -> None:
    """Keep them, and print those that are new and matter, one line each; they have left this process then."""
    matter = [finding for finding in keep(findings) if finding.severity != "info"]
    if matter:
        sys.stderr.write("".join(f"hidl: {line(finding)}\n" for finding in matter))
        sys.stderr.flush()
        with suppress(OSError):  # it is closed
            streams.wait_until_read(2)


def keep(findings: Iterable[Finding]) -> list[Finding]:
    """Add them to the run's findings, and return those that are new to them."""
    new = list(findings)
    file = os.environ.get(FINDINGS)
    if file and new:
        with suppress(OSError):
            return record.add(Path(file), new)
    return new


def line(finding: Finding) -> str:
    """A finding in one line."""
    where = f" ({finding.where})" if finding.where else ""
    return f"{finding.severity} {finding.rule}{where}: {finding.title}: {finding.seen}; fix: {finding.fix}"


def is_first_of_its_node(environment: Mapping[str, str]) -> bool:
    """Is this the first rank of its node? So is each, where the launcher does not tell."""
    return launched.told(launched.LOCAL_RANKS, environment) in (None, 0)
