"""The stand-in scheduler of a twin: settings from what the cluster is dressed as."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_twin import dress as dress_
from hidl_twin.batch.settings import Host, Queue, Settings
from hidl_twin.batch.system import System
from hidl_twin.dress import Dress
from hidl_twin.layout import Layout


def settings_of(system: System, layout: Layout, dress: Dress, login: Mapping[str, str]) -> Settings:
    """The scheduler of the cluster in ``layout``, a twin of a site. ``login``: see ``Settings``."""
    assert dress.site is not None
    site = load_site(dress.site)
    rules = {rule: use for rule, use in (dress.rules or {}).items() if use == "required"}
    default = next((queue.name for queue in dress.queues if queue.default), None)
    counts = [node.count for node in site.node_types.values()]
    settings = Settings(
        cluster=dress.cluster,
        login_host=dress.login_name or "login1",
        launch_host=dress.launch,
        hosts={host.name: _host(host) for host in dress.hosts},
        queues={queue.name: _queue(dress, queue) for queue in dress.queues},
        default_queue=default,
        remote=("ssh", "-F", str(layout["ssh/config"])),
        site_nodes=sum(count or 0 for count in counts) if counts and all(counts) else None,
        mpi=_beneath(layout, site),
        login=login,
    )
    return system.settings(settings, rules, site.policies.account_option)


def _host(host: dress_.Host) -> Host:
    return Host(
        slots=host.sockets * host.cores_per_socket,
        threads_per_core=host.threads_per_core,
        gpus=host.gpus,
        memory_gib=host.memory_mib / 1024,
        model=host.cpu.split()[-1] if host.cpu else "unknown",
    )


def _queue(dress: Dress, queue: dress_.Queue) -> Queue:
    return Queue(queue.hosts, queue.min_nodes, queue.max_nodes, tuple(_run_limits(dress, queue)))


def _run_limits(dress: Dress, queue: dress_.Queue) -> Iterator[tuple[int | None, float]]:
    """Those of the site's only partition that is this queue; of several, the longest alone is known."""
    limits = [limit for limit in dress.limits if limit.queue == queue.name]
    if len(limits) == 1:
        yield from ((nodes or None, float(minutes)) for nodes, minutes in limits[0].walls)
    elif queue.max_minutes is not None:
        yield None, float(queue.max_minutes)


def _beneath(layout: Layout, site: Site) -> str | None:
    """The true prefix of the MPI whose programs start the ranks: Spectrum MPI's (jsrun), else the site's default."""
    name = next((name for name, mpi in site.mpi.items() if mpi.family == "spectrum-mpi"), site.default_mpi)
    return str((layout["site"] / "mpi" / name / "include").resolve().parent) if name else None
