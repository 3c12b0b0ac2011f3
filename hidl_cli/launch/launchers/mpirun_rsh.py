"""``mpirun_rsh`` of MVAPICH2 2.x.

mpirun_rsh sends one line to a shell on each host: ``cd DIR; env ... NAME=VALUE ... mpispawn``. It quotes that line
incompletely (src/pm/mpirun/mpirun_rsh.c of MVAPICH2 2.3.7, confirmed by running it):

- The values of ``NAME=VALUE`` arguments are not quoted at all, so they are quoted here.
- The program's arguments are put between single quotes, so only single quotes within them are escaped here.
- The working directory and ``LD_LIBRARY_PATH`` come unquoted from its own environment; the job script checks them.

``-export`` and ``-export-all`` are not used. Both copy the whole environment of the first node (``SLURM_PROCID``,
``TMPDIR``, secrets) to all other nodes, and ``-export-all`` even overrides the values on the command line. Instead,
every variable that the ranks need is passed by name. A site can still add ``-export`` to its launcher arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.contract import Launch, Launcher, Request, mvapich2_binding
from hidl_cli.launchers import require_fit
from hidl_cli.quoting import sh, within_single_quotes

#: Options with which mpirun_rsh passes on values and arguments in ways that require different quoting.
_OTHER_WAYS = {"launcher": "srun", "fastssh": None, "sg": None, "config": None, "legacy": None}


class MpirunRsh(Launcher):
    """``mpirun_rsh`` of MVAPICH2, which exits with 0 or 1 regardless of the ranks' exit status."""

    name = "mpirun_rsh"
    #: MVAPICH 3.0 and later are based on MPICH 4, whose Hydra starts their ranks.
    starts = ("mvapich2", "mvapich2-gdr")
    of_library = True
    through_ssh = True

    def launch(self, request: Request) -> Launch:
        """Start the ranks with ``mpirun_rsh``, which uses the first of two values given for the same variable."""
        require_fit(self, request.mpi)
        further = request.arguments_for(self.name)
        _check(further)
        placement = request.placement
        variables = {**mvapich2_binding(request, launcher_binds=False), **request.environment}
        hosts = ("-np", str(placement.ranks), "-hostfile", request.hostfile)
        return Launch(
            argv=(
                request.mpi.program(self.name),
                *hosts,
                *further,
                *(f"{name}={sh(value)}" for name, value in variables.items()),
            ),
            forwarded=tuple(name for name in request.forward if name not in variables),
            rest=tuple(map(within_single_quotes, _program(request.program))),
            host_line=f"{{host}}:{placement.ranks_per_node}",
            status_on_stderr=True,
            host_option="",
        )


def _program(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program's command, wrapped in a shell if mpirun_rsh would mistake its first word for a variable."""
    return ("/bin/sh", "-c", 'exec "$@"', "sh", *words) if "=" in words[0] else words


def _check(arguments: Iterable[str]) -> None:
    """Raise ``InvalidInput`` for an argument that changes how mpirun_rsh quotes values and arguments."""
    words = list(arguments)
    for word, following in zip(words, [*words, ""][1:], strict=True):
        option, _, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or option not in _OTHER_WAYS:
            continue
        if _OTHER_WAYS[option] in (None, value or following):
            raise InvalidInput(
                f"launcher argument {word} of mpirun_rsh changes how variables and arguments reach the ranks",
                hint="remove it from `launcher_arguments` of the site's MPI library",
            )
