"""Horovod in a world that MPI started: its settings, and gloo's meeting point, before ``hvd.init()``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hidl_workloads.metrics import METRICS_FILE

if TYPE_CHECKING:
    from mpi4py import MPI

Controller = Literal["mpi", "gloo"]


def configure(*, cycle_time_ms: float, fusion_mib: float, timeline: bool) -> None:
    """Set what Horovod reads when it begins: how often it looks for gradients, how many it sends together.

    ``timeline``: rank 0 writes what it did, for chrome://tracing, to ``timeline.json`` beside the metrics document.
    """
    os.environ["HOROVOD_CYCLE_TIME"] = repr(cycle_time_ms)
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(int(fusion_mib * 2**20))
    if timeline:
        os.environ["HOROVOD_TIMELINE"] = str(
            Path(os.environ.get(METRICS_FILE, "metrics.json")).with_name("timeline.json")
        )


def init(hvd: Any, communicator: MPI.Comm, controller: Controller) -> None:
    """``hvd.init()`` over the world, with one controller for both agreement and data; every rank calls this.

    ``hvd`` is one of Horovod's modules. Raises ``RuntimeError`` where its world is another one than MPI's.
    """
    os.environ["HOROVOD_CONTROLLER"] = os.environ["HOROVOD_CPU_OPERATIONS"] = controller
    if controller == "mpi":
        hvd.init()
    else:
        _meet_by_gloo(hvd, communicator)
    if (hvd.rank(), hvd.size()) != (communicator.rank, communicator.size):
        raise RuntimeError(
            f"rank {communicator.rank} of {communicator.size} is rank {hvd.rank()} of {hvd.size()} for Horovod"
        )


def one_host(communicator: MPI.Comm) -> bool:
    """Are all ranks on one host? Every rank calls this."""
    from mpi4py import MPI

    return len(set(communicator.allgather(MPI.Get_processor_name()))) == 1


def meeting_host(communicator: MPI.Comm) -> str:
    """Return the name under which the others reach rank 0; every rank calls this."""
    import socket

    if one_host(communicator):
        return "127.0.0.1"
    host, dot, domain = str(communicator.bcast(socket.gethostname())).partition(".")
    return f"{host}{os.environ.get('HIDL_ADDRESS_SUFFIX', '')}{dot}{domain}"


def _meet_by_gloo(hvd: Any, communicator: MPI.Comm) -> None:
    """Give gloo what ``horovodrun`` would: each rank's place, and a server on rank 0 where the ranks find each other.

    The server keeps bytes, for as long as ``hvd.init()`` takes.
    """
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer
    from mpi4py import MPI

    local = communicator.Split_type(MPI.COMM_TYPE_SHARED, key=communicator.rank)
    cross = communicator.Split(color=local.rank, key=communicator.rank)
    slot = SlotInfo(
        hostname=MPI.Get_processor_name(),
        rank=communicator.rank,
        local_rank=local.rank,
        cross_rank=cross.rank,
        size=communicator.size,
        local_size=local.size,
        cross_size=cross.size,
    )
    local.Free()
    cross.Free()
    slots = communicator.gather(slot)
    server = RendezvousServer() if communicator.rank == 0 else None
    port = 0
    if server is not None:
        port = server.start()
        server.init(slots)
    settings = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": meeting_host(communicator),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(communicator.bcast(port)),
        "HOROVOD_HOSTNAME": slot.hostname,
    }
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        settings[f"HOROVOD_{name.upper()}"] = str(getattr(slot, name))
    os.environ.update(settings)
    if one_host(communicator):
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo")
    hvd.init()
    communicator.Barrier()
    if server is not None:
        server.stop()
