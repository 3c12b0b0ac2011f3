"""Our launchers as ReFrame's: those that it lacks, for whatever check names no run of hidl.

They give the very command that hidl's own launch plan has, for the placement that the job asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Request
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from hidl_cli.quoting import sh_line
from hidl_cli.templates import render_script

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site

#: ReFrame 4.10 has srun, mpirun and mpiexec, and not these.
OURS = ("mpirun_rsh", "ibrun", "jsrun")
_HOSTS = "hidl-hosts"
#: What stands for the program, which ReFrame puts after the command by itself.
_PROGRAM = "hidl-program"
#: What the ranks of a check get, as far as it is set in its job.
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")


def register(site: Site) -> None:
    """Make those of ``OURS`` that the site has known to ReFrame, under their own names; again: nothing happens."""
    from reframe.core.backends import register_launcher
    from reframe.core.launchers import JobLauncher

    for name in OURS:
        if name in site.launchers:
            _register(name, site, register_launcher, JobLauncher)


def _register(name: str, site: Site, register_launcher: Any, base: Any) -> None:
    from reframe.core.exceptions import ConfigError

    class Ours(base):  # type: ignore[misc]
        def command(self, job: Any) -> list[str]:
            return [command(site, name, job.num_tasks, job.num_tasks_per_node, job.num_cpus_per_task)]

    try:
        register_launcher(name)(Ours)
    except ConfigError:  # it is known already
        return


def command(site: Site, name: str, ranks: int | None, ranks_per_node: int | None, threads: int | None) -> str:
    """The line, without the program, that starts so many ranks with launcher ``name``, as shell text."""
    ranks = ranks or 1
    per_node = min(ranks, ranks_per_node or 1)
    placement = Placement(-(-ranks // per_node), per_node, ranks, threads or 1, bind=True)
    gpus = site.node_type().gpus
    request = Request(
        placement,
        program=(_PROGRAM,),
        mpi=_library(site, name),
        hostfile=_HOSTS,
        gpus_per_rank=max(1, gpus // per_node) if gpus else None,
    )
    launch = launcher(name).launch(request)
    variables = [f"{key}={value}" for key, value in launch.environment.items()]
    argv = [word for word in launch.argv if word != _PROGRAM]
    start = sh_line([*(["env", *variables] if variables else []), *argv])
    if _HOSTS not in launch.argv:
        return start
    # Each of these names that is set, as NAME='value'; the hosts come from the allocation, when the job runs.
    forwarded = " ".join(f'${{{variable}+"{variable}=${variable}"}}' for variable in _FORWARDED)
    hosts = render_script(f"schedulers/{site.scheduler}.sh.j2", {}).strip()
    form = launch.host_line.replace("{host}", "&")
    return f"{hosts}\nlist_hosts | head -n {placement.nodes} | sed 's/.*/{form}/' > {_HOSTS}\n{start} {forwarded}"


def _library(site: Site, name: str) -> Library:
    """The site's MPI library that this launcher starts: the default one where it does."""
    from hidl_cli.errors import InvalidInput
    from hidl_cli.launch.launchers.families import fitting
    from hidl_cli.launch.library import library_for

    own = Library("stack", "mpich")
    for key in dict.fromkeys([site.default_mpi, *site.mpi]):
        if key is None:
            continue
        library = library_for(site, own, key)
        named = site.mpi[key].launchers
        if name in fitting(library.family) and (not named or name in named):
            return library
    raise InvalidInput(
        f"site {site.name} has no MPI library that {name} starts", hint="describe it under `mpi` in the site's file"
    )
