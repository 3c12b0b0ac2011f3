"""Apply the rules for nodes and ranks inside a job, before the program starts.

The rules take milliseconds and start no processes. Findings are printed to stderr, one per line, and added to the file
``$HIDL_FINDINGS``. Errors in this module must never cause a run to fail.
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

from hidl_workloads import launcher_environment, mpi_library, streams
from hidl_workloads.doctor import node, nodes, ranks, record
from hidl_workloads.doctor.finding import Finding, worst_first
from hidl_workloads.doctor.ranks import World

if TYPE_CHECKING:
    from mpi4py import MPI

FINDINGS = "HIDL_FINDINGS"
"""Variable with the file to which findings are added; if unset, they are only printed."""
CORES_PER_RANK = "HIDL_CORES_PER_RANK"
"""Variable with the number of cores to which each rank should be bound; unset if binding was not requested."""
NODE_MEMORY = "HIDL_NODE_MEMORY"
"""Variable with the memory of each node, in bytes, that the placement assumes."""

_PRECEDENCE_SECONDS = 0.2


def before_mpi() -> node.Node | None:
    """Report errors that may terminate this process in ``MPI_Init`` without any message.

    The first rank of each node reports them. Other ranks report errors that the first rank has not reported yet,
    because a rank that dies in ``MPI_Init`` terminates the first one as well. Returns the facts of the node on the
    first rank, and None on other ranks or if the facts are unknown.
    """
    with suppress(Exception):
        first = is_first_of_its_node(os.environ)
        wanted = os.environ.get(NODE_MEMORY, "")
        here = node.probe(wanted_memory=int(wanted) if wanted.isdecimal() else None)
        # Libraries that are loaded before MPI is imported were preloaded.
        preloaded = ranks.RULES.findings(World((ranks.this_rank(0, 1),)))
        errors = [each for each in (*node.RULES.findings(here), *preloaded) if each.severity == "error"]
        if errors and not first:
            errors = _unreported(errors)
        tell(errors)
        return here if first else None
    return None


def _unreported(errors: list[Finding]) -> list[Finding]:
    """Return the errors that the first rank of the node has not recorded after a short time; none without a file."""
    time.sleep(_PRECEDENCE_SECONDS)
    file = os.environ.get(FINDINGS)
    reported = {(each.rule, each.where) for each in record.read(Path(file))} if file else set()
    return [each for each in errors if file and (each.rule, each.where) not in reported]


def with_mpi(world: MPI.Comm, here: node.Node | None) -> None:
    """Apply all rules to all ranks and nodes, on rank 0. Collective; ``here`` is the result of ``before_mpi``."""
    mine = ""  # text, because another node may have a version of this module whose facts cannot be parsed
    with suppress(Exception):
        rank = ranks.this_rank(world.rank, world.size, version=mpi_library.version())
        mine = json.dumps([rank.to_json(), asdict(here) if here else None])
    everyone = world.gather(mine)
    if everyone is None:
        return
    with suppress(Exception):
        gathered = [each for text in everyone for each in _read(text)]
        bound = os.environ.get(CORES_PER_RANK, "")
        of_world = World(tuple(rank for rank, _ in gathered), cores_per_rank=int(bound) if bound.isdecimal() else None)
        found_nodes = tuple(each for _, each in gathered if each is not None)
        of_each = (finding for each in found_nodes for finding in node.RULES.findings(each))
        unreported = [finding for finding in of_each if finding.severity != "error"]
        compared = nodes.RULES.findings(nodes.Nodes(found_nodes))
        tell(worst_first([*ranks.RULES.findings(of_world), *compared, *unreported]))


def _read(text: str) -> Iterator[tuple[ranks.Rank, node.Node | None]]:
    """Parse the facts of a rank and its node, ignoring facts that cannot be parsed."""
    with suppress(Exception):
        rank, its_node = json.loads(text)
        yield ranks.Rank.from_json(rank), node.Node.from_facts(its_node) if its_node else None


def tell(findings: Iterable[Finding]) -> None:
    """Record findings, and print new errors and warnings, one per line. Returns once the output has been read."""
    printed = [finding for finding in keep(findings) if finding.severity != "info"]
    if printed:
        sys.stderr.write("".join(f"hidl: {line(finding)}\n" for finding in printed))
        sys.stderr.flush()
        with suppress(OSError):  # stderr is closed
            streams.wait_until_read(2)


def keep(findings: Iterable[Finding]) -> list[Finding]:
    """Add findings to those of the run, and return the new ones."""
    new = list(findings)
    file = os.environ.get(FINDINGS)
    if file and new:
        with suppress(OSError):
            return record.add(Path(file), new)
    return new


def line(finding: Finding) -> str:
    """Format a finding as one line."""
    where = f" ({finding.where})" if finding.where else ""
    return f"{finding.severity} {finding.rule}{where}: {finding.title}: {finding.seen}; fix: {finding.fix}"


def is_first_of_its_node(environment: Mapping[str, str]) -> bool:
    """Return whether this is the first rank of its node; True if the launcher does not set local ranks."""
    return launcher_environment.read_number(launcher_environment.LOCAL_RANKS, environment) in (None, 0)
