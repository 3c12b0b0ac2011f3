"""Path of a GPU's gradients to MPI: staged through the host's memory, or passed directly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from mpi4py import MPI

from hidl_workloads import gpu_aware
from hidl_workloads.training.data_parallel.gpu_proof import Memory, sums_are_right
from hidl_workloads.training.data_parallel.shared_memory import node_of

Buffers = Literal["auto", "staged", "direct"]
"""Which way: ``direct`` is MPI's own, of a GPU-aware library; ``auto``: that, where it is proved, else ``staged``."""


@dataclass(frozen=True)
class Path:
    """``gpu-aware`` or ``staged``, and why that one."""

    name: Literal["gpu-aware", "staged"]
    reason: str


class GpuAccess(Memory, Protocol):
    """A GPU as a framework knows it."""

    def ask_mpi(self) -> gpu_aware.Answer:
        """Ask MPI whether it reads and writes this kind of memory."""

    def survives(self) -> str | None:
        """Return why MPI cannot sum such memory in a process of its own; None if it can."""


def choose_path(communicator: MPI.Comm, gpu: GpuAccess, wanted: Buffers, *, compressed: bool) -> Path:
    """Return the path that is ``wanted``, or the best that is proved; the same on all ranks; collective.

    Raises ``ValueError`` on all ranks for ``direct`` where MPI says that it is not GPU-aware, or sums wrongly.
    """
    if wanted not in get_args(Buffers):
        raise ValueError(f"gpu_buffers must be one of {', '.join(get_args(Buffers))}, not {wanted!r}")
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ValueError("training on GPUs requires MPI_THREAD_SERIALIZED, because frameworks use their own threads")
    if wanted == "staged":
        return Path("staged", "as requested")
    by_host = Path("staged", "compression is computed on the host")
    path = by_host if compressed else prove(communicator, gpu, on_trust=wanted == "direct")
    if path.name == "staged" and wanted == "direct":
        raise ValueError(
            f"gpu_buffers='direct' requires an MPI library that can sum GPU memory: {path.reason}; use 'staged'"
        )
    return path


def prove(communicator: MPI.Comm, gpu: GpuAccess, *, on_trust: bool) -> Path:
    """Return ``gpu-aware`` if MPI sums the GPUs' memory, which is tried, else ``staged``; collective.

    ``on_trust``: try where the library does not say that it is GPU-aware, too.
    """
    answer = gpu.ask_mpi()
    unaware = answer.aware is False or (answer.aware is None and not on_trust)
    fault = _first(communicator, answer.source if unaware else None)
    if fault is None and answer.aware:
        node = node_of(communicator)
        fault = _first(communicator, gpu.survives() if node.rank == 0 else None)
        node.Free()
    if fault is None:
        fault = sums_are_right(communicator, gpu)
    return Path("gpu-aware", answer.source) if fault is None else Path("staged", fault)


def _first(communicator: MPI.Comm, fault: str | None) -> str | None:
    """Return the first rank's fault, on all ranks; None if none has one; collective."""
    return next((each for each in communicator.allgather(fault) if each is not None), None)
