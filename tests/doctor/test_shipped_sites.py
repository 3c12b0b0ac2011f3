"""The shipped site files against schedulers that are as those files document them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hidl_cli import batch_systems, paths
from hidl_cli.doctor.examine import contexts, examine
from hidl_cli.launch.options import seconds
from hidl_cli.site.load import load_site
from hidl_cli.site.probes.facts import Hardware, ProbedNode, Queue, SchedulerFacts
from hidl_cli.site.schema import Partition, Site
from tests.doctor.machines import host

#: The share of the installed memory that Slurm gives to jobs (Delta: 0.90 to 0.95; Expanse's V100 nodes: 0.96).
_USABLE = 0.93
#: Partitions of machines whose users name a quality of service or a feature instead (Perlmutter's).
_UNNAMED = ("regular_milan_ss11", "gpu_ss11", "shared_gpu_ss11", "xfer")
SITES = sorted(path.stem for path in (paths.shipped() / "site_configs").rglob("[!_]*.yaml"))


def documented(site: Site) -> SchedulerFacts:
    """The scheduler of the site as its file and its notes describe it."""
    queues: dict[str, list[Partition]] = {}
    for key, partition in site.partitions.items():
        queues.setdefault(partition.queue or key, []).append(partition)
    if site.policies.partition == "never":
        return SchedulerFacts("slurm", nodes=tuple(nodes(site, {})), queues=tuple(map(Queue, _UNNAMED)))
    found = [queue(name, partitions) for name, partitions in queues.items()]
    return SchedulerFacts(site.scheduler, nodes=tuple(nodes(site, queues)), queues=(*found, Queue("xfer")))


def queue(name: str, partitions: list[Partition]) -> Queue:
    """A partition with its own limits: those of a quality of service (Leonardo's bprod) may exceed them."""
    own = [partition for partition in partitions if partition.qos is None] or partitions[:1]
    walls = [wall for each in own for wall in (each.max_wall, *(limit.max_wall for limit in each.max_wall_by_nodes))]
    return Queue(
        name,
        min_nodes=min(each.min_nodes for each in own),
        max_nodes=max((each.max_nodes for each in own if each.max_nodes), default=None),
        max_wall=max((wall for wall in walls if wall), key=seconds, default=None),
    )


def nodes(site: Site, queues: dict[str, list[Partition]]) -> Iterator[ProbedNode]:
    """All nodes, as Slurm counts them: GPUs only where jobs request them there, and memory without the system's."""
    share = 1.0 if site.policies.memory in ("mem", "mem-per-cpu") else _USABLE
    for name, kind in site.node_types.items():
        members = [each for each in site.partitions.values() if each.node_type == name]
        wanted = [re.findall(r"\w+", each.constraint or "") for each in members]
        most = max((each.max_nodes or 1 for each in members), default=1)
        hardware = Hardware(
            cores=kind.cores,
            memory_mib=int(kind.memory_gib * 1024 * share) if kind.memory_gib else None,
            gpus=0 if site.policies.gpus == "none" else kind.gpus,
        )
        named = tuple(key for key, partitions in queues.items() if any(each.node_type == name for each in partitions))
        features = frozenset((*kind.features, *(word for words in wanted for word in words)))
        for i in range(max(kind.count or 0, most)):  # Summit's count is approximate
            yield ProbedNode(f"{name}{i}", hardware, features, named or _UNNAMED)


@pytest.mark.parametrize("name", SITES)
def test_a_machine_that_is_as_its_file_says_gives_only_findings_about_the_file(name: str, tmp_path: Path) -> None:
    site = load_site(name)
    asked = contexts(site, roots=(tmp_path,), host=host(), saved=documented(site))
    found = {one.rule: one for one in examine(asked).findings if one.severity != "info"}
    supported = batch_systems.system(site.scheduler) or site.scheduler in ("local", "ssh")
    expected = {rule for rule, holds in {"HD090": site.status == "retired", "HD097": not supported}.items() if holds}
    assert found.keys() - {"HD098"} == expected, found
    assert ("HD098" in found) is any(site.node_types[each.node_type].cores is None for each in site.partitions.values())
