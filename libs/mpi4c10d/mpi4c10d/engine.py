"""Operations that MPI carries out, and the thread that completes those for which no thread waits."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from mpi4py import MPI
from torch._C._distributed_c10d import Work

from mpi4c10d.buffers import size_in_bytes
from mpi4c10d.failures import Failures

#: Seconds that a waiting thread polls without a pause, if every rank has a core of its own, and further ones per byte,
#: in which it yields the core: MPI moves data only while it is polled. On two busy cores, 25 MB took 33 ms in this way,
#: as in MPI's own Allreduce, 40 ms with the sleeps that follow, and 54 ms without yielding.
_SPIN, _SPIN_PER_BYTE = 1e-3, 2e-9
#: Tests of a request between two looks at the clock, if every rank has a core of its own.
_TESTS = 16
#: The longest sleep between two polls, and its share of the time waited: an operation ends at most 5 % late.
_LONGEST_SLEEP, _SHARE = 1e-3, 0.05
#: Polls between two looks for failures of other ranks.
_LOOK_EVERY = 16


class Pause:
    """The time between two polls of a waiting thread: none, then what others take of the core, then sleeps that grow.

    ``crowded``: ranks share cores, and a thread that polls takes time from one that computes. With four ranks on two
    busy cores, 4 KB took 0.9 ms without spinning, and 10 ms with 2 ms of ``sched_yield`` before the first sleep.
    ``size``: bytes of the result.
    """

    def __init__(self, crowded: bool, size: int) -> None:
        self._began = time.monotonic()
        self._spin = 0.0 if crowded else _SPIN
        self._yield = 0.0 if crowded else _SPIN + size * _SPIN_PER_BYTE
        self.tests = 1 if crowded else _TESTS

    def __call__(self) -> None:
        waited = time.monotonic() - self._began
        if waited < self._spin:
            return
        self.tests = 1
        if waited < self._yield:
            os.sched_yield()
        else:
            time.sleep(min(_LONGEST_SLEEP, waited * _SHARE))


class Operation(Work):
    """One call of a process group, made of MPI requests.

    Args:
        name: of the call, for messages.
        requests: the MPI requests, started.
        finish: called once after all requests are complete, with their statuses if it is point-to-point.
        result: the tensors that the future resolves to.
        keep: buffers that MPI uses until then.
        seconds: timeout.
        group: the group, whose ``explain`` words a timeout and whose ``crowded`` chooses the pauses.
        number: position among the group's collectives; None for point-to-point.
        entry: of the flight recorder.
    """

    def __init__(
        self,
        name: str,
        *,
        requests: Sequence[MPI.Request],
        finish: Callable[[list[MPI.Status] | None], None] | None,
        result: Sequence[torch.Tensor],
        keep: Any,
        seconds: float,
        group: Any,
        number: int | None,
        entry: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.number, self._entry = number, entry
        self._name, self._group, self._seconds = name, group, seconds
        self._requests, self._finish, self._keep, self._result = requests, finish, keep, result
        self._statuses = None if number is not None else [MPI.Status() for _ in self._requests]
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._polls = 0
        self._published = False
        self._done = False
        self._error: Exception | None = None
        self._completed: Any = None
        self._future: Any = None
        self._source = -1

    @property
    def title(self) -> str:
        """Name, number and group, for messages."""
        number = f" #{self.number} of" if self.number is not None else " in"
        return f"{self._name}{number} group {self._group.label}"

    @property
    def crowded(self) -> bool:
        """True if the group's ranks share cores."""
        return bool(self._group.crowded)

    def poll(self, tests: int = 1) -> bool:
        """Advance MPI and return True if the operation has ended, well or not."""
        if self._done:
            return True
        if not self._lock.acquire(blocking=False):  # another thread polls it
            return False
        try:
            if not self._done and _closed:
                self._end(RuntimeError(f"{self.title}: the program has ended"))
            elif not self._done:
                self._advance(tests)
            return self._done
        finally:
            self._lock.release()

    def _advance(self, tests: int) -> None:
        self._polls += 1
        try:
            complete = self._test(tests)
        except MPI.Exception as error:
            self._end(RuntimeError(f"{self.title}: {error.Get_error_string()}"))
            return
        if complete:
            self._complete()
        elif self._polls % _LOOK_EVERY == 0:
            self._look()

    def _test(self, tests: int) -> bool:
        if len(self._requests) != 1:
            return bool(MPI.Request.Testall(self._requests, self._statuses))
        test, status = self._requests[0].Test, self._statuses[0] if self._statuses else None
        return any(test(status) for _ in range(tests))

    def _complete(self) -> None:
        """Finish after MPI has done its part; fail if another rank gave this collective up."""
        failures: Failures = self._group.failures
        if self.number is not None and (late := failures.given_up(self._group, self.number)) is not None:
            self._end(RuntimeError(f"{self.title}: {late}"))
            return
        try:
            if self._finish is not None:
                self._finish(self._statuses)
        except Exception as error:
            self._end(error)
        else:
            if self._statuses:
                self._source = self._statuses[0].Get_source()
            self._end(None)

    def _look(self) -> None:
        """Fail if another rank has failed, or at the timeout."""
        failures: Failures = self._group.failures
        failure = failures.of(self._group, self.number)
        waited = time.monotonic() - self._began
        if failure is not None:
            self._end(RuntimeError(f"{self.title}: {failure}"))
        elif waited > self._seconds:
            reason = f"exceeded the timeout of {self._seconds:g} s; {self._group.explain(self)}"
            self._end(RuntimeError(f"{self.title}: {reason}"))
            if self.number is not None:
                failures.give_up(self._group, self.number, f"{self.title}: {reason}")
        elif not self._published and waited > self._seconds / 2:
            self._published = True
            self._group.publish(self)

    def _end(self, error: Exception | None) -> None:
        self._error = error
        if error is not None and self.number is None and not _closed:
            for request in self._requests:
                if request != MPI.REQUEST_NULL:
                    request.Cancel()
        if error is not None:
            _ABANDONED.append((self._requests, self._keep, self._result))  # MPI may still write there
        self._requests, self._finish, self._keep = [], None, None
        self._done = True
        if error is None:
            self._group.failures.recorder.complete(self._entry)
        elif not _closed:
            self._group.failures.recorder.dump(self._group.failures.rank)
        if self._future is not None:
            CALLBACKS.run(self._resolve)

    def _resolve(self) -> None:
        self._completed.set_result(None)

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return list(self._result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout.total_seconds() if timeout is not None else 0.0
        if not self.poll(1 if self.crowded else _TESTS):
            pause = Pause(self.crowded, sum(map(size_in_bytes, self._result)))
            began = time.monotonic()
            while not self.poll(pause.tests):
                pause()
                if 0 < limit < time.monotonic() - began:
                    raise RuntimeError(f"{self.title}: not complete after {limit:g} s")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.poll()

    def is_success(self) -> bool:
        return self.poll() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return list(self._result)

    def _source_rank(self) -> int:
        return self._source

    source_rank = _source_rank

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                # An error that a callback raises is one to C++ too. ``Future.set_exception`` stores it as the value, at
                # which DDP's reducer crashes.
                self._completed = torch.futures.Future()
                self._future = self._completed.then(self._outcome)
                if self._done:
                    self._resolve()
                else:
                    ENGINE.watch(self)
            return self._future


class Batch(Work):
    """Several operations as one."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__()
        self._operations = list(operations)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(operation.wait(timeout) for operation in self._operations)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(operation.is_completed() for operation in self._operations)

    def is_success(self) -> bool:
        return all(operation.is_success() for operation in self._operations)

    def exception(self) -> Exception | None:
        return next((found for each in self._operations if (found := each.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for operation in self._operations for tensor in operation.result()]

    def get_future(self) -> Any:
        tensors = self.result()

        def outcome(futures: Any) -> list[torch.Tensor]:
            futures.wait()  # raises the error of an operation
            return tensors

        return torch.futures.collect_all([each.get_future() for each in self._operations]).then(outcome)


class Engine:
    """A thread that polls asynchronous operations, and sleeps while there are none.

    It naps between polls: the ranks' computing threads need the cores more than it does. After a nap in which this
    process computed nothing, it polls for a while without pauses.
    """

    _NAP, _LONGEST_NAP = 30e-6, 300e-6
    #: Seconds of polling without pauses; the share of a nap that a process computes if any of its threads does.
    _SPELL, _BUSY = 300e-6, 0.5

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._operations: list[Operation] = []
        self._thread: threading.Thread | None = None

    def watch(self, operation: Operation) -> None:
        """Poll this operation until it ends."""
        with self._changed:
            self._operations.append(operation)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mpi4c10d", daemon=True)
                self._thread.start()
            elif len(self._operations) == 1:
                self._changed.notify_all()

    def drain(self, seconds: float) -> None:
        """Wait until all operations have ended, at most that long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._operations, seconds)

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended after ``close()``, at most that long."""
        with self._changed:
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _run(self) -> None:
        nap = self._NAP
        while True:
            with self._changed:
                while not self._operations:
                    if _closed:
                        return
                    self._changed.wait()
                operations = list(self._operations)
            began, computed = time.monotonic(), time.process_time()
            time.sleep(nap)
            now = time.monotonic()
            idle = time.process_time() - computed < self._BUSY * (now - began)
            until = now + self._SPELL if idle and not any(each.crowded for each in operations) else now
            while True:
                ended = {id(operation) for operation in operations if operation.poll()}
                if ended or time.monotonic() >= until:
                    break
                os.sched_yield()
            nap = self._NAP if ended else min(self._LONGEST_NAP, nap * 1.1)
            if ended:
                with self._changed:
                    self._operations = [each for each in self._operations if id(each) not in ended]
                    if not self._operations:
                        self._changed.notify_all()


class Callbacks:
    """Threads that resolve futures.

    A callback may issue a collective and wait for it, thus each that is due needs an idle thread.
    """

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._threads: set[threading.Thread] = set()

    def run(self, function: Callable[[], None]) -> None:
        """Call the function in another thread."""
        with self._changed:
            self._due.append(function)
            if self._idle >= len(self._due):
                self._changed.notify()
                return
            thread = threading.Thread(target=self._work, name="mpi4c10d callbacks", daemon=True)
            self._threads.add(thread)
            thread.start()

    def join(self, seconds: float) -> None:
        """Wait until all threads have ended after ``close()``, at most that long."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._due:
                    if _closed:
                        return
                    self._changed.wait()
                self._idle -= 1
                function = self._due.popleft()
            function()


#: Requests of operations that failed, with their buffers: MPI cannot cancel collectives.
_ABANDONED: list[Any] = []
#: True after ``close()``: MPI must not be called any more.
_closed = False
ENGINE = Engine()
CALLBACKS = Callbacks()


def close(drain: float, seconds: float) -> None:
    """End the threads, before the interpreter does: it would end them within C++, which then terminates the process.

    Args:
        drain: seconds that asynchronous operations get to complete; the others fail after that.
        seconds: for each kind of thread to end. Only a future's callback can take longer.
    """
    global _closed  # noqa: PLW0603
    ENGINE.drain(drain)
    _closed = True
    ENGINE.join(seconds)
    CALLBACKS.join(seconds)


def _reset() -> None:
    """Forget the threads and operations of the parent: a forked child has none of them."""
    for each in (ENGINE, CALLBACKS):  # in place: other modules refer to these objects
        vars(each).update(vars(type(each)()))


os.register_at_fork(after_in_child=_reset)
