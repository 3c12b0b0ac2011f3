"""The guard of an attended job: a process that takes the job back if this one is killed and its client hangs.

SIGKILL leaves hidl no time. The client (``salloc``) then gets SIGTERM, and SIGHUP if it is at a terminal, and takes its
job back in the handlers of these signals. What they do is not safe in a handler: once in some hundred times salloc
hangs, and its job stays in the queue.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hidl_cli import process
from hidl_cli.record.run import Run

_GRACE_SECONDS = 5
#: Reads the client's number, then a word when hidl is done with it; the end of the file instead means that hidl died.
_SCRIPT = """
read -r client && [ "$client" != done ] || exit 0
read -r _ && exit 0
sleep "$1"
if [ "$(cat "/proc/$client/comm" 2>/dev/null)" = "$2" ]; then kill -KILL "$client"; fi
shift 2
cd /  # modules of the directory that hidl was called in may be another user's
exec "$@" >/dev/null 2>&1
"""


@contextmanager
def guarded(run: Run, program: str) -> Iterator[Callable[[int], object]]:
    """Start the guard of a run; give what tells it the process number of the client, whose name is ``program``."""
    cancel = (sys.executable, "-m", "hidl_cli", "cancel", str(run.directory))
    command = ("sh", "-c", _SCRIPT, "sh", str(_GRACE_SECONDS), program, *cancel)
    with Path(os.devnull).open("wb") as nowhere:
        guard = process.start_conversation(command, env=os.environ, stderr=nowhere)
    assert guard.stdin is not None
    assert guard.stdout is not None
    pipe = guard.stdin

    def tell(text: str) -> None:
        with suppress(BrokenPipeError):
            pipe.write(f"{text}\n".encode())

    try:
        yield lambda client: tell(str(client))
    finally:
        tell("done")
        pipe.close()
        guard.stdout.close()
        guard.wait()
