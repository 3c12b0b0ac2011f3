"""Which CPUs a rank is bound to, as MVAPICH2, Intel MPI and TACC's task_affinity choose them from a few variables.

The MPI library of a twin is MPICH, which reads none of these, so the stand-ins bind a rank before its program starts
(the real libraries do it in MPI_Init). Standard library only, Python 3.7 or newer: it runs on the nodes.

As a program: ``rank_binding.py FAMILY PROGRAM...`` binds itself by the ranks' places that Hydra tells, and becomes
PROGRAM; FAMILY is mvapich2, intel-mpi or task_affinity.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def cpus(family: str, rank: int, ranks: int, variables: Mapping[str, str]) -> set[int] | None:
    """CPUs of rank ``rank`` of ``ranks`` on its node; None: not bound."""
    cores = usable_cores()
    if family == "mvapich2":
        chosen = _mvapich2(cores, rank, ranks, variables)
    elif family == "intel-mpi":
        chosen = _intel(cores, rank, variables)
    elif family == "task_affinity":
        each = len(cores) // ranks
        chosen = _block(cores, rank * each, each)
    else:
        chosen = None
    return {cpu for core in chosen for cpu in core} if chosen else None


def usable_cores() -> list[list[int]]:
    """CPUs that this process may use, grouped by core, ordered by the cores' first CPUs."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            core = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, []).append(cpu)
    return list(cores.values())


def _mvapich2(cores: list[list[int]], rank: int, ranks: int, variables: Mapping[str, str]) -> list[list[int]] | None:
    """MVAPICH2 2.3.7 user guide, "Efficient Process Mapping Support": one core per rank by default."""
    if variables.get("MV2_ENABLE_AFFINITY", "1") == "0":
        return None
    mapping = variables.get("MV2_CPU_MAPPING")
    if mapping:
        parts = mapping.split(":")
        return [_numbers(parts[rank % len(parts)])]
    each = 1
    spread = variables.get("MV2_CPU_BINDING_POLICY", "").lower() == "scatter"
    if variables.get("MV2_CPU_BINDING_POLICY", "").lower() == "hybrid":
        each = int(variables.get("MV2_THREADS_PER_PROCESS") or 1)
        spread = variables.get("MV2_HYBRID_BINDING_POLICY", "").lower() in ("spread", "scatter", "numa")
    if each * ranks > len(cores):
        return None  # as the true one, which warns and binds nothing
    return _block(cores, rank * (len(cores) // ranks if spread else each), each)


def _intel(cores: list[list[int]], rank: int, variables: Mapping[str, str]) -> list[list[int]] | None:
    """Intel MPI, "Process Pinning": I_MPI_PIN_DOMAIN=N:compact gives each rank N cells that lie side by side.

    A cell is a logical CPU, or a core's first one with I_MPI_PIN_CELL=core.
    """
    size, _, layout = variables.get("I_MPI_PIN_DOMAIN", "").partition(":")
    if variables.get("I_MPI_PIN", "1").lower() in ("0", "no", "off", "disable") or not size.isdigit():
        return None
    if layout not in ("", "compact", "scatter"):
        return None
    whole = variables.get("I_MPI_PIN_CELL", "").lower() == "core"
    cells = [[core[0]] for core in cores] if whole else [[cpu] for core in cores for cpu in core]
    if layout == "scatter":
        return _by_turns(cells, rank, int(size))
    return _block(cells, rank * int(size), int(size))


def _by_turns(cells: list[list[int]], rank: int, size: int) -> list[list[int]] | None:
    """Cells of a rank where the ranks take their sockets by turns."""
    sockets: dict[str, list[list[int]]] = {}
    for cell in cells:
        sockets.setdefault(socket_of(cell[0]), []).append(cell)
    chosen = list(sockets.values())
    return _block(chosen[rank % len(chosen)], rank // len(chosen) * size, size)


def socket_of(cpu: int) -> str:
    """Return the number of a CPU's socket."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id").read_text().strip()
    except OSError:
        return "0"


def _block(cores: list[list[int]], first: int, length: int) -> list[list[int]] | None:
    return cores[first : first + length] if length > 0 and first + length <= len(cores) else None


def _numbers(listed: str) -> list[int]:
    found: list[int] = []
    for part in listed.split(","):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


def bind(family: str, rank: int, ranks: int, variables: Mapping[str, str]) -> None:
    """Bind this process; leave it unbound if the CPUs are missing, like the real libraries."""
    chosen = cpus(family, rank, ranks, variables)
    if chosen:
        try:
            os.sched_setaffinity(0, chosen)
        except OSError as error:
            sys.stderr.write(f"cannot bind rank {rank} to CPUs {sorted(chosen)}: {error}\n")


def main(arguments: list[str]) -> int:
    """Bind, then become the program."""
    family, program = arguments[0], arguments[1:]
    rank, ranks = int(os.environ.get("MPI_LOCALRANKID", "0")), int(os.environ.get("MPI_LOCALNRANKS", "1"))
    bind(family, rank, ranks, os.environ)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
