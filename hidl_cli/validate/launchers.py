"""Our launchers as ReFrame's: those that it lacks, for whatever check names no run of hidl.

They give the very command that hidl's own launch plan has, for the placement that the job asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Gpus, Request
from hidl_cli.launch.library import library_for
from hidl_cli.launch.placement import Placement, Topology
from hidl_cli.launchers import LAUNCHERS, starts
from hidl_cli.mpi import Library
from hidl_cli.quoting import sh_line
from hidl_cli.schedulers import scheduler_for

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site

#: Before their names in ReFrame, which refuses a second launcher of the same name (4.10 has an ``ibrun``).
_OURS_PREFIX = "hidl-"
_HOSTS = "hidl-hosts"
#: What stands for the program, which ReFrame puts after the command by itself.
_PROGRAM = "hidl-program"
#: What the ranks of a check get, as far as it is set in its job.
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")


def ours(site: Site) -> list[str]:
    """The site's launchers that ReFrame starts by hidl's own command.

    ReFrame has srun, mpirun and mpiexec itself; its ``ibrun`` takes all of the job's slots, whatever the check's
    placement.
    """
    return [name for name in site.launchers if not LAUNCHERS.get(name).in_reframe]


def name_in_reframe(launcher: str) -> str:
    """Return the name under which ReFrame knows the launcher."""
    return launcher if LAUNCHERS.get(launcher).in_reframe else f"{_OURS_PREFIX}{launcher}"


def register(site: Site) -> None:
    """Register the launchers that are ``ours`` with ReFrame; again: nothing happens."""
    from reframe.core.backends import register_launcher
    from reframe.core.launchers import JobLauncher

    for name in ours(site):
        _register(name, site, register_launcher, JobLauncher)


def _register(name: str, site: Site, register_launcher: Any, base: Any) -> None:
    from reframe.core.exceptions import ConfigError

    class Ours(base):  # type: ignore[misc]
        def command(self, job: Any) -> list[str]:
            return [command(site, name, job.num_tasks, job.num_tasks_per_node, job.num_cpus_per_task)]

    try:
        register_launcher(name_in_reframe(name))(Ours)
    except ConfigError:  # by an earlier call: nobody else has a name with this prefix
        return


def command(site: Site, name: str, ranks: int | None, ranks_per_node: int | None, threads: int | None) -> str:
    """The line, without the program, that starts so many ranks with launcher ``name``, as shell text."""
    ranks = ranks or 1
    per_node = min(ranks, ranks_per_node or 1)
    placement = Placement(
        -(-ranks // per_node), per_node, ranks, threads or 1, bind=True, node=Topology.of(site.node_type())
    )
    request = Request(
        placement,
        program=(_PROGRAM,),
        mpi=_library(site, name),
        forward=_FORWARDED,
        hostfile=_HOSTS,
        gpus=Gpus.of(site.node_type().gpus, per_node),
    )
    launch = launcher(name).launch(request)
    variables = [f"{key}={value}" for key, value in launch.environment.items()]
    argv = [word for word in launch.argv if word != _PROGRAM]
    start = sh_line([*(["env", *variables] if variables else []), *argv])
    if launch.forwarded:  # each of these names that is set, as NAME='value'
        start += "".join(f' ${{{variable}+"{variable}=${variable}"}}' for variable in launch.forwarded)
    if _HOSTS not in launch.argv:
        return start
    # The hosts come from the allocation, when the job runs.
    hosts = scheduler_for(site).functions.strip()
    form = launch.host_line.replace("{host}", "&")
    return f"{hosts}\nlist_hosts | head -n {placement.nodes} | sed 's/.*/{form}/' > {_HOSTS}\n{start}"


def _library(site: Site, name: str) -> Library:
    """The site's MPI library that this launcher starts: the default one where it does."""
    own = Library("stack", "mpich")
    for key in dict.fromkeys([site.default_mpi, *site.mpi]):
        if key is None:
            continue
        library = library_for(site, own, key, gpus=bool(site.node_type().gpus))
        named = site.mpi[key].launchers
        if starts(name, library) and (not named or name in named):
            return library
    raise InvalidInput(
        f"site {site.name} has no MPI library that {name} starts", hint="describe it under `mpi` in the site's file"
    )
