"""Latency with threads: the senders of rank 0 and the receivers of rank 1 all communicate at once.

``-t S:R`` are the numbers of threads. One sender, as by default: any receiver takes its messages. More: the iterations'
numbers are the tags, so each sender is answered by the thread with the same iteration.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import repeat

from hidl_workloads.omb import buffers
from hidl_workloads.omb.benchmark import LATENCY, Benchmark, Point, Result, blank_and_title
from hidl_workloads.omb.latency import exactly_two
from hidl_workloads.omb.options import Options, UsageError
from hidl_workloads.omb.timing import no_garbage_collection

_TO, _FRO = 1, 2  # tags for a single sender, to which any receiver replies


def fits(options: Options, ranks: int) -> None:
    """Raise ``UsageError`` without two ranks, without ``MPI_THREAD_MULTIPLE``, and for numbers that do not fit."""
    from mpi4py import MPI

    exactly_two(options, ranks)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UsageError("latency_mt requires MPI_THREAD_MULTIPLE, but MPI was initialised without it")


def opening(benchmark: Benchmark, options: Options, ranks: int) -> str:
    """The numbers of threads, and the title."""
    senders, receivers = options.threads
    numbers = f"# Number of Sender threads: {senders} \n# Number of Receiver threads: {receivers}\n"
    return numbers + blank_and_title(benchmark, options, ranks)


def measure(point: Point) -> Result:
    """Half a round trip in microseconds, as the senders' mean."""
    rank = point.communicator.rank
    threads = point.options.threads[rank]
    workers = [_Worker(point, number, threads) for number in range(threads)]
    _together(workers, 0, point.warmup)
    point.communicator.Barrier()
    _together(workers, point.warmup, point.iterations)
    errors = sum(worker.errors for worker in workers)
    if rank != 0:
        return Result((0.0,), errors)
    samples = [seconds * 1e6 / 2 for worker in workers for seconds in worker.each]
    seconds = sum(worker.seconds for worker in workers)
    return Result((seconds * 1e6 / 2 / point.iterations,), errors, samples)


class _Worker:
    """One thread's part: every ``threads``-th iteration from ``number`` on, with buffers of its own."""

    def __init__(self, point: Point, number: int, threads: int) -> None:
        communicator, rank = point.communicator, point.communicator.rank
        self.point, self.number, self.threads = point, number, threads
        self.sent = buffers.for_rank(point.options, rank, point.size)
        self.received = buffers.for_rank(point.options, rank, point.size)
        self.message = self.sent.message(point.count, point.datatype)
        self.room = self.received.room(point.count, point.datatype)
        pickled = isinstance(self.received, buffers.PickleBuffer)
        self.send = communicator.send if pickled else communicator.Send
        self.receive = communicator.recv if pickled else communicator.Recv
        self.numbered = point.options.threads[0] > 1
        self.each: list[float] = []
        self.seconds, self.errors = 0.0, 0

    def iterations(self, first: int, count: int) -> list[int]:
        """This worker's iterations among ``count`` from ``first`` on."""
        return [n for n in range(first, first + count) if n % self.threads == self.number]

    def run(self, first: int, count: int) -> None:
        """Do them, and keep how long they took."""
        from mpi4py import MPI

        clock, options = MPI.Wtime, self.point.options
        numbers = self.iterations(first, count)
        if options.validation or options.tail_lat:
            each = [self._checked(number, clock) for number in numbers]
            self.each, self.seconds = each, sum(each)
            return
        start = clock()
        self._exchange(numbers)
        self.seconds = clock() - start

    def _checked(self, iteration: int, clock: Callable[[], float]) -> float:
        """One iteration with -c or -z. The pattern is that of the rank: any thread may have sent the message."""
        point = self.point
        untimed = point.options.validation_warmup if point.options.validation else 0
        rank = point.communicator.rank
        if point.options.validation:
            self.sent.write(buffers.pattern(point.count, point.datatype, 0, rank))
            self.received.write(buffers.pattern(point.count, point.datatype, 1, rank))
        for _ in repeat(None, untimed):
            self._exchange([iteration])
        start = clock()
        self._exchange([iteration])
        seconds = clock() - start
        if point.options.validation:
            expected = buffers.pattern(point.count, point.datatype, 0, 1 - rank)
            self.errors += buffers.differences(self.received, expected)
        return seconds

    def _exchange(self, iterations: list[int]) -> None:
        send, receive, message, room = self.send, self.receive, self.message, self.room
        numbered, arrived = self.numbered, None
        if self.point.communicator.rank == 0:
            for number in iterations:
                send(message, 1, number if numbered else _TO)
                arrived = receive(room, 1, number if numbered else _FRO)
        else:
            for number in iterations:
                arrived = receive(room, 0, number if numbered else _TO)
                send(message, 0, number if numbered else _FRO)
        if iterations:
            self.received.received(arrived)


def _together(workers: list[_Worker], first: int, count: int) -> None:
    """Run all workers at once, a thread each; they begin together. Raises what the first failed thread raised."""
    begin = threading.Barrier(len(workers))
    failures: list[BaseException] = []

    def work(worker: _Worker) -> None:
        begin.wait()
        try:
            worker.run(first, count)
        except BaseException as failure:  # it is raised again below
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
    with no_garbage_collection():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


BENCHMARKS = (
    Benchmark(
        "latency_mt",
        "MPI%s Multi-threaded Latency Test",
        measure,
        "latency",
        "mixtcuTzd",
        LATENCY[:1],
        check=fits,
        opening=opening,
    ),
)
