"""The MPI call recorder for ``hidl run --profile``, and the script that loads it into the ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from hidl_cli import paths
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.mpi import Library

#: ``required``: a run that cannot be recorded is an error; ``if-possible``: it runs unrecorded.
Profiling = Literal["required", "if-possible"]

#: Directory of the recorder's files, one for each rank, next to the metrics of a step.
DIRECTORY = "profile"

#: The command that starts a rank's program. Its path is relative to the run's directory, in which launchers start
#: ranks.
STARTER = ("/bin/sh", "record.sh")

_LIBRARY = "recorder.so"
_EVENTS = 2_000_000  # maximum number of calls in the traces of all ranks together (128 MB)
_MOST_EVENTS = 10_000  # maximum number of calls in the trace of a single rank

# Launchers may pass their own variables only to the ranks, so the recorder is added where the ranks start.
_RECORD = f"""\
#!/bin/sh
# Loads the recorder of MPI calls into a rank: /bin/sh record.sh PROGRAM [ARGUMENT...]
events=$(({_EVENTS} / ${{HIDL_WORLD_SIZE:-1}}))
if [ "$events" -gt {_MOST_EVENTS} ]; then
    events={_MOST_EVENTS}
fi
export MPITRAFFIC_DIRECTORY="${{HIDL_METRICS%/*}}/{DIRECTORY}" MPITRAFFIC_EVENTS="$events"
export LD_PRELOAD="${{HIDL_METRICS%/steps/*}}/{_LIBRARY}${{LD_PRELOAD:+:$LD_PRELOAD}}"
exec "$@"
"""
_DO_NOT_RECORD = """\
#!/bin/sh
# The ranks are not recorded.
exec "$@"
"""


def build_recorder(library: Library) -> Path:
    """Return the recorder for an MPI library, building it on first use.

    Raises:
        MissingPrecondition: The library has no compiler wrapper, or there is no compiler.
    """
    from mpitraffic import build
    from mpitraffic.errors import TrafficError

    if library.prefix is None:
        raise MissingPrecondition(
            f"cannot build the recorder: the prefix of MPI library {library.name} is unknown",
            hint="set `prefix` of the library in the site file, or use --mpi stack",
        )
    try:
        return build.cached(paths.user_cache() / "recorders", str(Path(library.prefix, "bin", "mpicc")))
    except (TrafficError, OSError) as error:
        raise MissingPrecondition(
            f"cannot record the run: {error}", hint=f"{getattr(error, 'hint', '') or 'see above'}, or omit --profile"
        ) from error


def install_recorder(library: Library, profiling: Profiling, directory: Path) -> str | None:
    """Write the recorder and the script that starts ranks with it into a run's directory.

    Returns None, or the reason why the run will not be recorded if ``profiling`` is ``if-possible``.

    Raises:
        MissingPrecondition: The run must be recorded but cannot be.
        OSError: The directory cannot be written.
    """
    reason = None
    try:
        if set(str(directory)) & set(": \t\n"):
            raise MissingPrecondition(
                f"cannot record the run: the path {str(directory)!r} contains a space or a colon",
                hint="set XDG_STATE_HOME to another directory",
            )
        built = build_recorder(library)
    except HidlError as error:
        if profiling == "required":
            raise
        reason = error.message
    directory.mkdir(parents=True, exist_ok=True)
    if reason is None:
        shutil.copyfile(built, directory / _LIBRARY)
    write_text(directory / STARTER[1], _DO_NOT_RECORD if reason else _RECORD, mode=0o755)
    return reason
