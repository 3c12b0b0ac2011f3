"""A cluster for a notebook: scheduler and workers are ranks of an MPI job on this machine, the client is outside."""

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
_GRACE = 10.0  # seconds that ranks have to end by themselves, and then by a signal
_LINES = 15


class ClusterFailed(Mpi4DaskError, RuntimeError):
    """The ranks of a local cluster ended, or did not come up; the message ends with what they said."""


class LocalMPICluster:
    """`n` workers and a scheduler as the ranks of one `mpiexec`, started when it is entered::

        with mpi4dask.LocalMPICluster(n=4) as client:
            client.submit(sum, [1, 2]).result()

    The launcher is that of the MPI library that mpi4py is linked with (`mpiexec` names another one). This process does
    not join the MPI world: its client talks over a socket, as all do who are outside, while data between workers go
    over MPI. The ranks end with the block, whatever ends it, and also when this process is killed: they watch it.
    `options` are further words for `dask-mpi`, such as `("--memory-limit", "4 GiB")`.

    Raises `NoLauncher` (see `mpi4dask.mpiexec`), and `ClusterFailed` where the workers are not there in `timeout`
    seconds.
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
            raise ValueError(f"a cluster needs a worker or more, not {n}")
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
        """Start the ranks, wait for all workers, and return the client. `close()` ends what this has begun."""
        from distributed import Client

        if self._job is not None:
            raise ClusterFailed("this cluster has been started already")
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
        """End the client, and then all ranks: by their scheduler's word where it is heard, else by signals."""
        job, client = self._job, self.client
        self._job = self.client = None
        if client is not None:
            with contextlib.suppress(Exception):  # a scheduler that is gone cannot be told
                client.shutdown()
            with contextlib.suppress(Exception):
                client.close()
        if job is not None:
            job.end(told=client is not None)

    @property
    def directory(self) -> str | None:
        """Where the ranks' output and the scheduler's address are kept; None where no cluster is up."""
        return self._job.directory.name if self._job else None

    @property
    def log(self) -> str:
        """What the ranks have said so far; empty once the cluster is closed."""
        return self._job.said() if self._job else ""

    def _wait_for_workers(self, client: Client, deadline: float) -> None:
        while len(client.scheduler_info(n_workers=-1)["workers"]) < self.n:
            assert self._job is not None
            self._job.check(deadline, f"its {self.n} workers")
            time.sleep(_PERIOD)


class _Job:
    """One `mpiexec` with its directory, which only this user can read; both are gone when it has ended."""

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
                start_new_session=True,  # an interrupt of the notebook is for the notebook
            )
        self._finalizer = weakref.finalize(self, _end, self._process, 0.0)

    def address(self, deadline: float) -> str:
        """The scheduler's address, once it is there."""
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(json.loads(self._file.read_text())["address"])
            self.check(deadline, "its scheduler")
            time.sleep(_PERIOD)

    def check(self, deadline: float, missing: str) -> None:
        """Raise `ClusterFailed` where the ranks have ended, or the time is over."""
        status = self._process.poll()
        if status is not None or time.monotonic() > deadline:
            why = "came up too late" if status is None else f"ended with status {status}"
            lines = "\n".join(self.said().splitlines()[-_LINES:])
            raise ClusterFailed(f"the cluster {why}: {missing} did not come up; the ranks said:\n{lines}")

    def said(self) -> str:
        """The output of all ranks."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def end(self, *, told: bool) -> None:
        """Wait until the ranks have ended; where they were not `told` to, or do not, make them."""
        self._finalizer.detach()
        _end(self._process, _GRACE if told else 0.0)
        self.directory.cleanup()


def _end(process: subprocess.Popen[Any], patience: float) -> None:
    """Wait for `patience` seconds, then end the session of `process`: first by SIGTERM, then by SIGKILL."""
    for signal_, seconds in ((None, patience), (signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        if signal_ is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
