"""Run directories of a made-up site, made by hidl's own code: planned, recorded and judged as real ones are.

Only the numbers are made up: what a program would have written is written by ``Night``, with noise of a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml

from hidl_cli.documents import write_json, write_text
from hidl_cli.errors import HidlError
from hidl_cli.plan.launch_plan import Plan, Step, create_run
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.record import Run, State
from hidl_cli.runs.conclude import conclude

SITE: dict[str, Any] = {
    "name": "example",
    "title": "a made-up cluster",
    "scheduler": "slurm",
    "launchers": ["mpirun_rsh", "srun"],
    "node_types": {"standard": {"cores": 16, "memory_gib": 128.0}},
    "partitions": {"compute": {"node_type": "standard", "max_nodes": 16}},
    "default_partition": "compute",
    "mpi": {
        "mvapich2-gdr": {
            "family": "mvapich2-gdr",
            "version": "2.3.7",
            "prefix": "/opt/mvapich2-gdr/2.3.7",
            "modules": ["cuda/11.6", "mvapich2-gdr/2.3.7"],
            "tuning": {"MV2_IBA_EAGER_THRESHOLD": "64K"},
        }
    },
    "default_mpi": "mvapich2-gdr",
}
WORKLOADS: tuple[dict[str, Any], ...] = (
    {
        "name": "pingpong",
        "title": "Latency and bandwidth between two nodes, by message size",
        "program": {"command": ["pingpong"]},
        "stacks": [{"stack": "mpi"}],
        "metrics": {"latency": {"unit": "us", "better": "lower"}, "bandwidth": {"unit": "MB/s", "better": "higher"}},
    },
    {
        "name": "matmul",
        "title": "The same matrix product on every rank",
        "program": {"command": ["matmul"]},
        "stacks": [{"stack": "mpi"}],
        "metrics": {"rate": {"unit": "GFLOP/s", "better": "higher"}},
    },
    {
        "name": "kmeans",
        "title": "k-means of a fixed set of points",
        "program": {"command": ["kmeans"]},
        "stacks": [{"stack": "mpi"}],
        "parameters": {"note": {"type": "str", "default": ""}},
        "metrics": {"seconds": {"unit": "s", "better": "lower"}},
        "scaling": {"metric": "seconds", "kind": "strong", "target": 0.8},
    },
)
BEGIN = datetime(2026, 9, 1, 2, 0, tzinfo=timezone.utc)
SIZES = tuple(2**power for power in range(23))

Metrics = list[dict[str, Any]]


@dataclass
class Nights:
    """Makes runs below ``root``, one after the other. ``config``: the user's configuration directory."""

    root: Path
    config: Path
    random: random.Random = field(default_factory=lambda: random.Random(4))

    def __post_init__(self) -> None:
        self._write("sites", SITE)
        for workload in WORKLOADS:
            self._write("workloads", workload)

    def _write(self, kind: str, document: Mapping[str, Any]) -> None:
        write_text(self.config / kind / f"{document['name']}.yaml", yaml.safe_dump(dict(document)))

    def run(
        self,
        request: RunRequest,
        night: float,
        measure: Callable[[Step], Metrics],
        *,
        lock: str = "5d1f" * 16,
        hosts: tuple[str, ...] = ("gpu01", "gpu02", "gpu03", "gpu04", "gpu05", "gpu06", "gpu07", "gpu08"),
        state: State = State.COMPLETED,
        stderr: str = "",
        **changes: Any,
    ) -> Run:
        """One run, planned ``night`` nights after the first; ``changes`` are made to the plan."""
        created = BEGIN + timedelta(days=night)
        plan = prepare(replace(request, site="example", baseline="single", hypothetical=True))
        suffix = f"{self.random.randrange(16**4):04x}"
        name = f"{created:%Y%m%d-%H%M%S}-{plan.workload.name}-{suffix}"
        plan = replace(plan, run=name, created=created.isoformat(timespec="seconds"), lock=lock, **changes)
        run = create_run(plan, "#!/bin/bash\n", root=self.root)
        nodes = max(step.placement.nodes for step in plan.steps)
        self._record(run, plan, created, hosts[:nodes], state)
        run.stderr.write_text(stderr, encoding="utf-8")
        for number, step in enumerate(plan.steps, start=1):
            write_json(run.metrics_file(number), self._document(step, hosts, measure(step)))
        try:
            conclude(run, plan, run.status())
        except HidlError:
            assert state is not State.COMPLETED or run.document("verdict")
        return run

    @staticmethod
    def _record(run: Run, plan: Plan, created: datetime, hosts: tuple[str, ...], state: State) -> None:
        run.write("job", {"schema": "hidl.job/1", "scheduler": "slurm", "id": f"{created:%j%H}"})
        started = created.timestamp() + 90
        status = {
            "schema": "hidl.status/1",
            "state": state.value,
            "exit_status": 0 if state is State.COMPLETED else 1,
            "started": started,
            "ended": started + 45 * len(plan.steps),
            "step": len(plan.steps),
            "steps": len(plan.steps),
            "hosts": list(hosts),
        }
        run.write("status", status)

    @staticmethod
    def _document(step: Step, hosts: tuple[str, ...], metrics: Metrics) -> dict[str, Any]:
        placement = step.placement
        of_ranks = [hosts[rank // placement.ranks_per_node] for rank in range(placement.ranks)]
        world = {"size": placement.ranks, "hosts": of_ranks}
        versions = {"python": "3.11.2", "mpi4py": "4.1.2"}
        return {"schema": "hidl.metrics/1", "world": world, "versions": versions, "metrics": metrics}

    def near(self, value: float, noise: float = 0.012) -> float:
        """``value`` with normal noise."""
        return value * self.random.gauss(1, noise)

    def training(self, *, loss: float = 0.035, rate: float = 380.0, noise: float = 0.012) -> Callable[[Step], Metrics]:
        """ResNet-50's metrics; ``loss`` of efficiency with each doubling of the ranks."""

        def measure(step: Step) -> Metrics:
            ranks = step.placement.ranks
            images = self.near(rate * ranks * (1 - loss) ** (ranks.bit_length() - 1), noise)
            time = 64 * ranks / images
            checksums = ["9f2c41"] * ranks
            return [
                {"name": "images_per_second", "value": images, "unit": "images/s", "samples": [images]},
                {"name": "step_time", "value": time, "unit": "s", "samples": [time]},
                {"name": "weight_checksum", "value": checksums[0], "unit": "sha256", "samples": checksums},
            ]

        return measure

    def clustering(self, *, serial: float = 0.003, noise: float = 0.01) -> Callable[[Step], Metrics]:
        """k-means' time, by Amdahl's law."""

        def measure(step: Step) -> Metrics:
            seconds = self.near(240 * (serial + (1 - serial) / step.placement.ranks), noise)
            return [{"name": "seconds", "value": seconds, "unit": "s", "samples": [seconds]}]

        return measure

    def pingpong(self, *, start: float = 1.6, rate: float = 12100.0) -> Callable[[Step], Metrics]:
        """Latency and bandwidth by message size: a start-up time and a rate, and a step where the protocol changes."""

        def measure(_: Step) -> Metrics:
            latency = [self.near(start + size / rate + (2.2 if size > 16384 else 0)) for size in SIZES]
            bandwidth = [self.near(rate * size / (size + 5200)) for size in SIZES]
            return [
                {"name": "latency", "value": latency[0], "unit": "us", "samples": latency, "sizes": list(SIZES)},
                {
                    "name": "bandwidth",
                    "value": bandwidth[-1],
                    "unit": "MB/s",
                    "samples": bandwidth,
                    "sizes": list(SIZES),
                },
            ]

        return measure

    def products(self, slow: Mapping[int, float]) -> Callable[[Step], Metrics]:
        """A rate for each rank; ``slow``: node -> share of the others' rate."""

        def measure(step: Step) -> Metrics:
            ranks, per_node = step.placement.ranks, step.placement.ranks_per_node
            samples = [self.near(9400 * slow.get(rank // per_node, 1.0), 0.006) for rank in range(ranks)]
            keys = {"samples": samples, "ranks": list(range(ranks))}
            return [{"name": "rate", "value": min(samples), "unit": "GFLOP/s", **keys}]

        return measure


def season(nights: Nights, *, length: int = 44) -> list[Run]:
    """Nightlies of some weeks: a stack that made training slower, a node that ages, an upgrade that helped latency."""
    study = RunRequest("resnet50", scale="1,2,4,8", repeat=5, target=0.85, ranks_per_node=4)
    clusters = RunRequest("kmeans", scale="ranks=1,2,4,8,16,32", repeat=5, ranks_per_node=4)
    products = RunRequest("matmul", nodes=8, ranks_per_node=4)
    runs = []
    upgrade = length * 2 // 3
    for night in range(length):
        late = night >= upgrade
        lock = ("77c0" if late else "5d1f") * 16
        runs.append(nights.run(study, night, nights.training(loss=0.085 if late else 0.03), lock=lock))
        if night % 7 == 0:
            runs.append(nights.run(clusters, night + 0.05, nights.clustering(noise=0.05 if night == 7 else 0.01)))
            noisy = replace(study, parameters=["framework=tensorflow"])
            runs.append(nights.run(noisy, night + 0.02, nights.training(rate=350, noise=0.06)))
            aging = {4: 0.99 - 0.012 * night / 7}
            runs.append(nights.run(products, night + 0.1, nights.products(aging)))
            start = 1.32 if night >= 21 else 1.6
            runs.append(
                nights.run(
                    RunRequest("pingpong", nodes=2, ranks_per_node=1), night + 0.15, nights.pingpong(start=start)
                )
            )
    timeout = "slurmstepd: error: *** JOB 3302 ON gpu01 CANCELLED AT 2026-10-15T04:00:00 DUE TO TIME LIMIT ***\n"
    broken = RunRequest("kmeans", nodes=2, tuning=["MV2_USE_RDMA_CM=1"])
    runs.append(nights.run(broken, length, lambda _: [], state=State.TIMEOUT, stderr=timeout))
    return runs
