"""What a site file says by itself, on any host."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context, Subject
from hidl_cli.quoting import sh
from hidl_cli.schedulers import names, unusable
from hidl_cli.site.load import ASSUMED_CORES
from hidl_cli.site.schema import Site
from hidl_workloads.doctor.finding import Evidence, Rules


def probe(context: Context) -> Site:
    """The site, with what this host reports about it."""
    return context.site


RULES: Rules[Site] = Rules()


@RULES.rule(
    "HD090",
    "The site is retired",
    severity="error",
    why="Its machine is switched off or closed to users: no job starts there.",
)
def retired(site: Site) -> Iterator[Evidence]:
    """The file has ``status: retired``."""
    if site.status == "retired":
        fix = f"hidl site show {sh(site.successor)}" if site.successor else "hidl site list shows sites in service"
        yield Evidence(f"status of site {site.name}: retired", fix, where=site.name)


@RULES.rule(
    "HD097",
    "The scheduler of the site is unsupported or unknown",
    severity="error",
    why="hidl cannot write a job script for the site: every `hidl run` and `hidl validate` is refused.",
)
def unsupported_scheduler(site: Site) -> Iterator[Evidence]:
    """The file names a scheduler that hidl cannot submit to, or none."""
    if reason := unusable(site):
        supported = ", ".join(names())
        fix = f"set `scheduler` in the site file to one of: {supported}" if site.scheduler is None else None
        yield Evidence(
            f"site {site.name}: {reason}",
            fix or f"supported schedulers: {supported}; a plug-in can add one (hidl.schedulers)",
            where=site.name,
        )


@RULES.rule(
    "HD098",
    "The cores of a node type are unknown",
    severity="warning",
    why="Without them, ranks get one thread each and are not bound to cores, too many ranks per node are not detected, "
    f"and on a twin each node claims {ASSUMED_CORES} cores.",
)
def unknown_cores(site: Site) -> Iterator[Evidence]:
    """A partition uses a node type without ``cores``; not on this machine or hidl's own cluster, which are asked."""
    if site.hidl_cluster:
        return
    used = {partition.node_type for partition in site.partitions.values()}
    for name, node in site.node_types.items():
        if name in used and node.cores is None and not node.detect:
            key = f"node_types.{name}.cores"
            yield Evidence(f"{key} of site {site.name} is not set", f"set {key} in the site file", where=name)


SUBJECT = Subject(probe, RULES)
