"""Site files against a real Slurm."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.rules.site import SUBJECTS
from hidl_cli.site.load import load_site
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.site.schema import Partition
from tests.cluster.cluster import LivingCluster


@pytest.fixture
def host(cluster: LivingCluster, monkeypatch: pytest.MonkeyPatch) -> ThisHost:
    """This machine, where the cluster's Slurm answers; the site is as large as that cluster."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    return ThisHost(dict(os.environ) | cluster.environment)


def findings(host: ThisHost, **partitions: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """What is found where the file of the cluster's site names these partitions beside its own."""
    site = load_site("test-cluster")
    more = {name: Partition.model_validate({"node_type": "node"} | keys) for name, keys in partitions.items()}
    changed = site.model_copy(update={"partitions": site.partitions | more})
    return [(one.rule, one.severity, one.where) for one in SUBJECTS[0].examine(Context(host, changed))]


def test_the_shipped_file_agrees_with_the_cluster(host: ThisHost) -> None:
    assert findings(host) == []


def test_a_partition_that_is_not_there_is_found(host: ThisHost) -> None:
    assert findings(host, nosuch={}) == [("HD091", "warning", "nosuch")]


def test_a_default_partition_that_is_not_there_is_an_error(host: ThisHost) -> None:
    assert findings(host, debug={"queue": "nosuch"}) == [("HD091", "error", "nosuch")]


def test_limits_beyond_the_clusters_are_found(host: ThisHost) -> None:
    assert findings(host, debug={"max_nodes": 5, "max_wall": "99:00:00"}) == [("HD092", "warning", "debug")]


def test_a_controller_that_is_not_there_is_found_at_once(host: ThisHost, tmp_path: Any) -> None:
    conf = tmp_path / "hidl" / "cluster" / "etc" / "slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("ClusterName=gone\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/munge\n")
    gone = ThisHost(dict(host.environment) | {"SLURM_CONF": str(conf)})
    assert findings(gone) == [("HD095", "error", "test-cluster")]
