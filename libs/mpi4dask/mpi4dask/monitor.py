"""The transport's counters in Dask's own metrics: Prometheus' `/metrics`, and the metrics of workers.

It also makes the scheduler reject restarts that would end ranks, which cannot be started again.

This is a preload module of `distributed`. `initialize`, `python -m mpi4dask` and `LocalMPICluster` load it; otherwise
add `mpi4dask.monitor` to `distributed.scheduler.preload` and `distributed.worker.preload`.

`/metrics` exports everything that is registered with `prometheus_client`, and the table below the workers on the
dashboard shows all numbers in `Worker.metrics` as of the last heartbeat. A protocol cannot add its own plots to the
dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.config

from mpi4dask.counters import counters
from mpi4dask.errors import Mpi4DaskError

MODULE = "mpi4dask.monitor"

#: Counters that a worker sends with each heartbeat; Prometheus gets all of them.
ON_THE_DASHBOARD = ("bytes_sent", "bytes_received", "mpi_bytes_sent", "messages_sent", "wakeups_sent", "spins")


class Collector:
    """Collector for `prometheus_client`: `dask_mpi_<name>_total` since the process started."""

    def collect(self) -> Iterator[Any]:
        """Yield one metric family for each counter."""
        from prometheus_client.core import CounterMetricFamily

        namespace = dask.config.get("distributed.dashboard.prometheus.namespace", "dask")
        for name, value in counters.as_dict().items():
            yield CounterMetricFamily(f"{namespace}_mpi_{name}", f"mpi4dask: {name.replace('_', ' ')}", value=value)


_collector: Collector | None = None


def enable() -> None:
    """Show the counters of the schedulers and workers that this process starts from now on."""
    for role in ("scheduler", "worker"):
        key = f"distributed.{role}.preload"
        modules = dask.config.get(key) or []
        modules = [modules] if isinstance(modules, str) else list(modules)
        if MODULE not in modules:
            dask.config.set({key: [*modules, MODULE]})


def dask_setup(server: Any) -> None:
    """Set up a scheduler or worker; `distributed` calls this for each one that starts in this process."""
    _register()
    metrics = getattr(server, "metrics", None)
    if isinstance(metrics, dict):  # a worker; the scheduler has none
        metrics |= {f"mpi_{name}": _reader(name) for name in ON_THE_DASHBOARD}
    if "restart" in server.handlers:  # the scheduler only
        server.handlers["restart"] = _guarded(server, server.handlers["restart"])


def _guarded(scheduler: Any, restart: Any) -> Any:
    """Return the handler ``restart`` with a check that raises `Mpi4DaskError` for workers without a nanny."""

    async def guarded(**options: Any) -> Any:
        ended = sum(worker.nanny is None for worker in scheduler.workers.values())
        if ended:
            raise Mpi4DaskError(
                f"restart would end {ended} workers that are MPI ranks and cannot be started again: use "
                "client.cancel(futures) to release data, or restart the program"
            )
        return await restart(**options)

    return guarded


def _reader(name: str) -> Any:
    def read(worker: Any) -> int:
        return int(getattr(counters, name))

    return read


def _register() -> None:
    """Register the collector once per process, if `prometheus_client` is installed."""
    global _collector  # noqa: PLW0603 - the registry is one per process, too
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    if _collector is None:
        _collector = Collector()
        REGISTRY.register(_collector)
