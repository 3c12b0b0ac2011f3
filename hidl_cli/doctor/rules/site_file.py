"""Rules for site files that can be checked on any host."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.quoting import sh
from hidl_cli.schedulers import names, unusable
from hidl_cli.site.load import ASSUMED_CORES
from hidl_cli.site.schema import Site
from hidl_workloads.doctor.finding import Evidence, Rules


def probe(context: Context) -> Site:
    """Return the site of the context."""
    return context.site


RULES: Rules[Site] = Rules()


@RULES.rule(
    "HD090",
    "The site is retired",
    severity="error",
    why="The machine has been shut down or is closed to users, so no job can start.",
)
def retired(site: Site) -> Iterator[Evidence]:
    """Report an error if the file has ``status: retired``."""
    if site.status == "retired":
        fix = f"hidl site show {sh(site.successor)}" if site.successor else "list sites in service with: hidl site list"
        yield Evidence(f"status of site {site.name}: retired", fix, where=site.name)


@RULES.rule(
    "HD097",
    "The scheduler of the site is unsupported or unknown",
    severity="error",
    why="hidl cannot write job scripts for the site, so `hidl run` and `hidl validate` always fail.",
)
def unsupported_scheduler(site: Site) -> Iterator[Evidence]:
    """Report an error if the file has no scheduler, or one that hidl does not support."""
    if reason := unusable(site):
        supported = ", ".join(names())
        fix = f"set `scheduler` in the site file to one of: {supported}" if site.scheduler is None else None
        yield Evidence(
            f"site {site.name}: {reason}",
            fix or f"use a supported scheduler ({supported}), or a plug-in that adds one (hidl.schedulers)",
            where=site.name,
        )


@RULES.rule(
    "HD098",
    "The number of cores of a node type is unknown",
    severity="warning",
    why="Without it, ranks get one thread each and are not bound to cores, too many ranks per node are not detected, "
    f"and each node of a twin has {ASSUMED_CORES} cores.",
)
def unknown_cores(site: Site) -> Iterator[Evidence]:
    """Report a warning if a partition uses a node type without ``cores``, unless the number can be detected."""
    if site.hidl_cluster:
        return
    used = {partition.node_type for partition in site.partitions.values()}
    for name, node in site.node_types.items():
        if name in used and node.cores is None and not node.detect:
            key = f"node_types.{name}.cores"
            yield Evidence(f"{key} of site {site.name} is not set", f"set {key} in the site file", where=name)


SUBJECT = Subject(probe, RULES)
