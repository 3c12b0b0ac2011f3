"""One operation of MPI on GPU memory, which may crash; rank 0 writes FILE if the result is right on all ranks.

::

    mpiexec -n 2 python -m benchmarks.gpu.operations NAME cuda FILE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from hidl_workloads.training.data_parallel.torch_devices import DeviceMemory

WORLD = MPI.COMM_WORLD
_SIZE = 2**18  # 1 MiB of float32: by the protocol for large messages

Values = torch.Tensor


def _of(values: Values) -> Any:
    """Return what mpi4py takes for a tensor, when the device has done its work."""
    if values.device.type == "cpu":
        return values.numpy()
    torch.cuda.synchronize()
    return DeviceMemory(values.data_ptr(), values.numel(), np.dtype(np.float32))


def _send(own: Values, other: Values) -> None:
    if WORLD.rank == 0:
        WORLD.Send(_of(own), 1)
        WORLD.Recv(_of(other), 1)
    else:
        WORLD.Recv(_of(other), 0)
        WORLD.Send(_of(own), 0)


def _isend(own: Values, other: Values) -> None:
    peer = 1 - WORLD.rank
    MPI.Request.Waitall([WORLD.Irecv(_of(other), peer), WORLD.Isend(_of(own), peer)])


def _bcast(own: Values, other: Values) -> None:
    other.copy_(own)
    WORLD.Bcast(_of(other), 1)


def _ibcast(own: Values, other: Values) -> None:
    other.copy_(own)
    WORLD.Ibcast(_of(other), 1).Wait()


def _reduce_scatter(own: Values, other: Values) -> None:
    both = torch.cat([own, own])
    WORLD.Reduce_scatter_block(_of(both), _of(other))


def _put(own: Values, other: Values) -> None:
    window = MPI.Win.Create(_of(other), 4, comm=WORLD)
    window.Fence()
    window.Put(_of(own), 1 - WORLD.rank)
    window.Fence()
    window.Free()


Operation = Callable[[Values, Values], object]
#: Name: what fills ``other`` from ``own``, and what is expected there of ``1 + rank`` everywhere in ``own``.
OPERATIONS: dict[str, tuple[Operation, Callable[[], int]]] = {
    "Send, Recv": (_send, lambda: 2 - WORLD.rank),
    "Isend, Irecv": (_isend, lambda: 2 - WORLD.rank),
    "Bcast": (_bcast, lambda: 2),
    "Allreduce": (lambda own, other: WORLD.Allreduce(_of(own), _of(other)), lambda: 3),
    "Reduce_scatter_block": (_reduce_scatter, lambda: 3),
    "Alltoall": (lambda own, other: WORLD.Alltoall(_of(own), _of(other)), lambda: 0),
    "Ibcast": (_ibcast, lambda: 2),
    "Iallreduce": (lambda own, other: WORLD.Iallreduce(_of(own), _of(other)).Wait(), lambda: 3),
    "Put": (_put, lambda: 2 - WORLD.rank),
    "Reduce_local": (lambda own, other: MPI.SUM.Reduce_local(_of(own), _of(other)), lambda: 1 + WORLD.rank),
}


def main(name: str, device: str, file: str) -> None:
    """Do one operation on two ranks; raises ``ValueError`` if the result is wrong."""
    operation, expectation = OPERATIONS[name]
    own = torch.full((_SIZE,), float(1 + WORLD.rank), device=device)
    other = torch.zeros(_SIZE, device=device)
    operation(own, other)
    if device != "cpu":
        torch.cuda.synchronize()
    expected = torch.full((_SIZE,), float(expectation()))
    if name == "Alltoall":
        expected[: _SIZE // 2], expected[_SIZE // 2 :] = 1.0, 2.0
    found = other.cpu()
    wrong = int((found != expected).sum())
    faults = WORLD.allgather(f"{wrong} of {_SIZE} elements are wrong on rank {WORLD.rank}" if wrong else "")
    if any(faults):
        raise ValueError("; ".join(fault for fault in faults if fault))
    if WORLD.rank == 0:
        Path(file).write_text(json.dumps({"elements": _SIZE}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
