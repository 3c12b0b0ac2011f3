"""A request to stop in good order, which a job script sends before its time limit or when its job is preempted.

The request is the file that ``$HIDL_STOP`` names, or SIGTERM, SIGUSR1 or SIGUSR2. A signal only sets a flag: the
program looks between two steps, saves its state and ends with status ``STOPPED``. Not every launcher passes signals on
to the ranks, but all nodes see the file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from typing import NoReturn

    from mpi4py import MPI

STOP_FILE = "HIDL_STOP"
"""Variable with the path of the file that requests a stop by its existence."""

STOPPED = 75
"""Exit status of a program that stopped in good order and continues when it is started again; sysexits.h: TEMPFAIL."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_SECONDS = 0.25  # not more often, because the file is on a shared file system

_state = {"requested": False, "listening": False, "looked": -_LOOK_SECONDS}


def listen() -> None:
    """Take ``SIGNALS`` as requests from now on; before, they end the process. Requires the main thread."""
    if _state["listening"] or threading.current_thread() is not threading.main_thread():
        return
    before = {number: signal.signal(number, _note) for number in SIGNALS}
    _state["listening"] = True

    masks = threading.local()

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def forget() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _state.update(listening=False, requested=False)
        restore()

    # A forked worker, such as one of multiprocessing, does not check for requests. SIGTERM must end it, even if it
    # arrives before the worker has restored its handlers.
    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=forget)


def should_stop(communicator: MPI.Comm | None = None) -> bool:
    """Return whether a stop was requested; call it between two steps.

    With a communicator, it is collective and returns the same on all ranks: True if one of them was asked to stop.
    Without one, ranks may learn of the request in different steps, and must agree by themselves. The first call also
    starts to ``listen``.
    """
    listen()
    own = is_requested()
    return own if communicator is None else bool(communicator.allreduce(int(own)))


def is_requested() -> bool:
    """Return whether this process was asked to stop; the file is looked at a few times a second."""
    if not _state["requested"]:
        now = time.monotonic()
        if now - _state["looked"] >= _LOOK_SECONDS:
            _state["looked"] = now
            path = os.environ.get(STOP_FILE, "")
            if os.path.exists(path):  # noqa: PTH110 - pathlib is not imported here
                _state["requested"] = True  # a signal may have set it in the meantime
    return bool(_state["requested"])


def exit_stopped(communicator: MPI.Comm, message: str) -> NoReturn:
    """Print the message on rank 0 and end all ranks; the launcher returns ``STOPPED``. Collective."""
    if communicator.rank == 0:
        sys.stderr.write(f"hidl: {message}\n")
        sys.stderr.flush()
    communicator.Barrier()
    sys.exit(0 if communicator.rank else STOPPED)


def _note(_number: int, _frame: object) -> None:
    _state["requested"] = True
