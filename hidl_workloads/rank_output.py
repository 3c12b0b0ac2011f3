"""Keep what a rank prints in files of its own, so that the ranks' lines cannot mix, and show it as it comes.

::

    mpiexec -n 2 python -m hidl_workloads.rank_output each|0 COMMAND [ARG...]

The process becomes COMMAND (``execvp``). Beside it, for every rank or for rank 0 alone, another process copies its
stdout and stderr to ``ranks/RANK.out`` and ``ranks/RANK.err`` beside ``$HIDL_METRICS``, and on to where they went.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from hidl_workloads import launcher_environment

NOT_EXECUTABLE, NOT_FOUND, CANNOT_KEEP = 126, 127, 125

_BLOCK = 1 << 16


def main(arguments: list[str]) -> int:
    """Become the program; returns an exit status only if that fails."""
    whose, *command = arguments
    rank = launcher_environment.read_number(launcher_environment.RANKS, os.environ) or 0
    if whose == "each" or rank == 0:
        place = Path(os.environ["HIDL_METRICS"]).parent / "ranks"
        try:
            place.mkdir(exist_ok=True)
            files = [(place / f"{rank}.{end}").open("wb", buffering=0) for end in ("out", "err")]
        except OSError as error:
            print(f"hidl: {error.filename}: {error.strerror} on {os.uname().nodename}", file=sys.stderr)
            return CANNOT_KEEP
        keep(files[0].fileno(), files[1].fileno())
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"hidl: {command[0]}: {error.strerror} on {os.uname().nodename}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def keep(out: int, err: int) -> None:
    """From now on, copy what this process writes to stdout and stderr to these files, too.

    The process that copies is no child of this one: a program that waits for all its children does not see it.
    """
    pipes = [os.pipe(), os.pipe()]
    helper = os.fork()
    if helper == 0:
        if os.fork() == 0:
            for _, write in pipes:
                os.close(write)
            _copy({pipes[0][0]: (out, 1), pipes[1][0]: (err, 2)})
        os._exit(0)
    os.waitpid(helper, 0)
    for stream, (read, write) in enumerate(pipes, start=1):
        os.dup2(write, stream)
        os.close(read)
        os.close(write)


def _copy(to: dict[int, tuple[int, ...]]) -> None:
    """Copy until the program and all that it started have closed both streams, or cannot be written any more."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the program's last output must not be lost
    while to:
        for source in select.select(list(to), [], [])[0]:
            block = os.read(source, _BLOCK)
            if not block:
                del to[source]
            for target in to.get(source, ()):
                _write(target, block)


def _write(target: int, block: bytes) -> None:
    try:
        while block:
            block = block[os.write(target, block) :]
    except OSError:  # the disk is full or the reader is gone; the other copy continues
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
