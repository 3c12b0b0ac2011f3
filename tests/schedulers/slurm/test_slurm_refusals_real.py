"""What a real Slurm does not take, or would never start: exit 6, with the limit and the site's value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.cluster import LivingCluster
from tests.schedulers.slurm.conftest import Bench
from tests.tiers import deep


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """The site's file promises more than Slurm holds."""
    wide: dict[str, Any] = {"node_type": "node", "max_nodes": 99, "max_wall": "10:00:00"}
    partitions = {"debug": wide, "small": wide, "gone": wide}
    node = {"node": {"cores": 4, "count": 99}}
    file = bench.hidl.config / "sites" / "test-cluster.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"name": "test-cluster", "extends": "test-cluster", "partitions": partitions, "node_types": node}
    file.write_text(json.dumps(document))
    return bench


REFUSED = [
    (["--partition", "gone"], "Invalid partition name specified", "available partitions: debug, small"),
    deep(["--nodes", "9"], "More processors requested than permitted", "TotalNodes=4"),
    deep(["--nodes", "3", "--partition", "small"], "More processors requested than permitted", "MaxNodes=2"),
    deep(["--time", "10:00", "--partition", "small"], "Requested time limit is invalid", "MaxTime=00:05:00"),
    deep(["--constraint", "fast"], "Invalid feature specification", "--constraint"),
    deep(["--reservation", "mine"], "Requested reservation is invalid", "available reservations: none"),
    deep(["--ranks-per-node", "64"], "More processors requested than permitted", "--ranks-per-node"),
]


@pytest.mark.parametrize(("arguments", "words", "value"), REFUSED)
def test_what_sbatch_refuses_is_reported_in_its_words_with_the_sites_value(
    bench: Bench, arguments: list[str], words: str, value: str
) -> None:
    completed = bench.run(*arguments)
    assert completed.returncode == 6, completed.stderr
    assert words in completed.stderr
    assert value in completed.stderr
    (run,) = bench.hidl.json("status")["runs"]
    assert run["state"] == "REFUSED"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        deep(["--nodes", "9"], "9 nodes requested, but partition debug has TotalNodes=4"),
        (["--nodes", "3", "--partition", "small"], "3 nodes requested, but partition small has MaxNodes=2"),
        deep(["--time", "10:00", "--partition", "small"], "10:00 requested, but partition small has MaxTime=00:05:00"),
    ],
)
def test_what_would_wait_for_ever_is_refused_and_cancelled(
    bench: Bench, cluster: LivingCluster, arguments: list[str], reason: str
) -> None:
    cluster.switch(enforce_limits=False)
    completed = bench.run(*arguments)
    assert completed.returncode == 6, completed.stderr
    assert reason in completed.stderr
    assert cluster("squeue", "-h").stdout == ""
