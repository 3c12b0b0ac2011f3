"""Sum and broadcast arrays of a library whose memory MPI cannot read, as a GPU's; rank 0 prints what came of it.

The library is NumPy with CuPy's few own names: ``asnumpy`` copies, and what was computed is there only once the stream
was waited for.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
from mpi4py import MPI

from hidl_workloads.ml.devices import Device

waited = 0


def wait() -> None:
    global waited  # noqa: PLW0603
    waited += 1


remote = ModuleType("remote")
remote.__dict__.update({name: getattr(np, name) for name in ("zeros", "abs")})
remote.__version__ = "1"  # type: ignore[attr-defined]
remote.asnumpy = np.copy  # type: ignore[attr-defined]
remote.asarray = np.copy  # type: ignore[attr-defined]
remote.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(synchronize=wait))  # type: ignore[attr-defined]

world = MPI.COMM_WORLD
for direct in (False, True):
    device = Device(remote, "remote", gpu=True, direct=direct)
    waited = 0
    total = np.array([world.rank + 1.0, 10.0])
    device.allreduce(world, total)
    sent = np.full(3, float(world.rank))
    device.ibcast(world, sent, world.size - 1)()
    if world.rank == 0:
        print(direct, total.tolist(), sent.tolist(), waited, flush=True)
