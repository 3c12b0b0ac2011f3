"""A cluster for a notebook: an MPI job on this machine runs scheduler and workers, the client stays outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mpi4dask import authentication, mpiexec, parent
from mpi4dask.errors import Mpi4DaskError

if TYPE_CHECKING:
    from distributed import Client

_PERIOD = 0.02
_GRACE = 10.0  # seconds that ranks get to exit by themselves, and then after each signal
_LINES = 15


class ClusterFailed(Mpi4DaskError, RuntimeError):
    """The ranks of a local cluster exited or did not start in time; the message ends with their output."""


class LocalMPICluster:
    """A scheduler and `n` workers as the ranks of one `mpiexec`, started on entry::

        with mpi4dask.LocalMPICluster(n=4) as client:
            client.submit(sum, [1, 2]).result()

    This process does not join the MPI world: its client uses a socket, like all clients outside the job, while data
    between workers goes over MPI. The ranks exit with the block, however it ends, and also if this process is killed,
    because they watch it.

    Args:
        n: Number of workers (default: 2).
        threads_per_worker: Threads of each worker (default: 1).
        dashboard_address: Address of the dashboard (default: `:0`, any free port).
        mpiexec: The launcher (default: that of the MPI library that mpi4py is linked with).
        options: Further options of `dask-mpi`, such as `("--memory-limit", "4 GiB")`.
        timeout: Seconds that the workers have to start (default: 60).

    Raises:
        NoLauncher: No launcher was found (see `mpi4dask.mpiexec`).
        ClusterFailed: The workers did not start in time.
    """

    def __init__(
        self,
        n: int = 2,
        *,
        threads_per_worker: int = 1,
        dashboard_address: str = ":0",
        mpiexec: str | None = None,
        options: Sequence[str] = (),
        timeout: float = 60.0,
    ) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        self.n = n
        self.client: Client | None = None
        self._words = ("--nthreads", str(threads_per_worker), "--dashboard-address", dashboard_address, *options)
        self._mpiexec, self._timeout = mpiexec, timeout
        self._job: _Job | None = None

    def __enter__(self) -> Client:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> Client:
        """Start the ranks, wait for all workers, and return the client; `close()` ends them."""
        from distributed import Client

        if self._job is not None:
            raise ClusterFailed("this cluster was already started")
        self._job = _Job(self.n + 1, self._words, mpiexec.find(self._mpiexec))
        try:
            deadline = time.monotonic() + self._timeout
            address = self._job.address(deadline)
            self.client = Client(address, timeout=max(1.0, deadline - time.monotonic()))
            self._wait_for_workers(self.client, deadline)
        except BaseException:
            self.close()
            raise
        return self.client

    def close(self) -> None:
        """Close the client, then all ranks: through their scheduler if it can be reached, otherwise by signals."""
        job, client = self._job, self.client
        self._job = self.client = None
        if client is not None:
            with contextlib.suppress(Exception):  # the scheduler may be gone
                client.shutdown()
            with contextlib.suppress(Exception):
                client.close()
        if job is not None:
            job.end(told=client is not None)

    @property
    def directory(self) -> str | None:
        """The directory with the ranks' output and the scheduler's address, None if no cluster is running."""
        return self._job.directory.name if self._job else None

    @property
    def log(self) -> str:
        """The output of the ranks so far, empty once the cluster is closed."""
        return self._job.said() if self._job else ""

    def _wait_for_workers(self, client: Client, deadline: float) -> None:
        while len(client.scheduler_info(n_workers=-1)["workers"]) < self.n:
            assert self._job is not None
            self._job.check(deadline, f"its {self.n} workers")
            time.sleep(_PERIOD)


class _Job:
    """One `mpiexec` and its private directory, which is removed when it ends."""

    def __init__(self, ranks: int, words: Sequence[str], launcher: mpiexec.Launcher) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="mpi4dask-")
        self._file = Path(self.directory.name, "scheduler.json")
        self._log = Path(self.directory.name, "log")
        argv = [*launcher.argv(ranks), sys.executable, "-m", "mpi4dask", "--scheduler-file", str(self._file), *words]
        environment = launcher.environment(os.environ) | {
            parent.PARENT: str(os.getpid()),
            parent.DIRECTORY: self.directory.name,
            authentication.TOKEN_VARIABLE: authentication.process_token().decode(),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the notebook must not reach the ranks
            )
        self._finalizer = weakref.finalize(self, _end, self._process, 0.0)

    def address(self, deadline: float) -> str:
        """Wait for the scheduler and return its address."""
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(json.loads(self._file.read_text())["address"])
            self.check(deadline, "its scheduler")
            time.sleep(_PERIOD)

    def check(self, deadline: float, missing: str) -> None:
        """Raise `ClusterFailed` if the ranks have exited or the deadline has passed."""
        status = self._process.poll()
        if status is not None or time.monotonic() > deadline:
            why = "started too late" if status is None else f"ended with status {status}"
            lines = "\n".join(self.said().splitlines()[-_LINES:])
            raise ClusterFailed(f"the cluster {why}: {missing} did not start; output of the ranks:\n{lines}")

    def said(self) -> str:
        """Return the output of all ranks."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def end(self, *, told: bool) -> None:
        """Wait until the ranks have exited; end them if they were not `told` to exit, or do not."""
        self._finalizer.detach()
        _end(self._process, _GRACE if told else 0.0)
        self.directory.cleanup()


def _end(process: subprocess.Popen[Any], patience: float) -> None:
    """Wait `patience` seconds, then end the session of `process` by SIGTERM and finally by SIGKILL."""
    for signal_, seconds in ((None, patience), (signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        if signal_ is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
