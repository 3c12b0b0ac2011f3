"""``mpirun_rsh`` of MVAPICH2 2.x.

It sends one line to a shell on each host (``cd DIR; env ... NAME=VALUE ... mpispawn``), in which what it was given
stands as follows (src/pm/mpirun/mpirun_rsh.c of MVAPICH2 2.3.7, and seen there):

- values of ``NAME=VALUE`` words bare: so each is quoted for that shell here;
- the program's arguments between single quotes: so only a single quote within one must be escaped;
- the working directory and ``LD_LIBRARY_PATH`` bare, out of its own environment: the job script looks at them first.

Neither ``-export`` nor ``-export-all`` is used. Both send the whole environment of the job's first node, to be set on
all others: its ``SLURM_PROCID``, its ``TMPDIR``, its secrets; the latter even over the values on the command line. So
every variable that ranks must get is named, and nothing else is sent. A site that wants ``-export`` nevertheless can
give it as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers import affinity
from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launchers import require_fit
from hidl_cli.quoting import sh, within_single_quotes

#: With these, values and arguments go through other hands, which quote in other ways (or not at all).
_OTHER_WAYS = {"launcher": "srun", "fastssh": None, "sg": None, "config": None, "legacy": None}


class MpirunRsh(Launcher):
    """One ``host:ranks`` line for each host; its own exit status is 0 or 1, whatever that of the ranks was."""

    name = "mpirun_rsh"
    #: MVAPICH 3.0 and later are built on MPICH 4 and are started by its Hydra.
    starts = ("mvapich2", "mvapich2-gdr")
    of_library = True
    through_ssh = True

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``. Of two words for one variable, mpirun_rsh takes the first."""
        require_fit(self, request.mpi)
        further = request.arguments_for(self.name)
        _check(further)
        placement = request.placement
        variables = {**affinity.mvapich2(request, launcher_binds=False), **request.environment}
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
    """The program; mpirun_rsh takes a first word that holds a ``=`` for one more variable."""
    return ("/bin/sh", "-c", 'exec "$@"', "sh", *words) if "=" in words[0] else words


def _check(arguments: Iterable[str]) -> None:
    """``InvalidInput`` for an argument that would change how mpirun_rsh hands on values and arguments."""
    words = list(arguments)
    for word, following in zip(words, [*words, ""][1:], strict=True):
        option, _, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or option not in _OTHER_WAYS:
            continue
        if _OTHER_WAYS[option] in (None, value or following):
            raise InvalidInput(
                f"mpirun_rsh {word} changes values of variables and arguments on their way to the ranks",
                hint="remove it from `launcher_arguments` of the site's MPI library",
            )
