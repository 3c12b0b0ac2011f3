"""The calls of a process group, each made of nonblocking MPI calls.

Ranks may differ in ``async_op``, and MPI does not match a blocking collective with a nonblocking one: all are
nonblocking.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp

from mpi4c10d.buffers import (
    copied,
    host,
    is_host,
    joined,
    memory,
    overlap,
    parted,
    places,
    same,
    size_in_bytes,
    writable,
)
from mpi4c10d.datatypes import Reduction, reduction_of
from mpi4c10d.engine import ENGINE, Batch, Operation
from mpi4c10d.world import World

Finish = Callable[[Any], None] | None
#: Tags that monitored_barrier uses, below MPI's upper bound.
_OWN_TAGS = 2


class Part:
    """A collective on one set of tensors: its request, and the action that completes it."""

    def __init__(self, request: MPI.Request, finish: Callable[[], None] | None, *keep: Any) -> None:
        self.request, self.finish, self.keep = request, finish, keep


class Collectives:
    """The calls of a process group, for both kinds of groups that torch knows."""

    def setup(
        self, *, world: World, communicator: MPI.Comm, ranks: Sequence[int], name: str, timeout: timedelta, store: Any
    ) -> None:
        """Join the group.

        Args:
            world: the world.
            communicator: of the group's ranks, in their order.
            ranks: the group's ranks in the world.
            name: torch's name of the group.
            timeout: of each call that brings none.
            store: torch's store, where waiting ranks publish what they wait for.
        """
        self.communicator, self.ranks, self.failures = communicator, tuple(ranks), world.failures
        self.crowded = world.crowded
        self.key = f"{world.inits}/{name}/{zlib.crc32(repr(self.ranks).encode())}"
        self.label, self._seconds, self._store = name, timeout.total_seconds(), store
        self._size, self._rank = communicator.Get_size(), communicator.Get_rank()
        self._order = threading.Lock()
        self._number = 0
        self._batch: list[Operation] | None = None
        self._largest_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) - _OWN_TAGS

    # ---- Reductions

    def allreduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        tensors = _listed(tensors)
        if tensors[0].is_sparse:
            return self.allreduce_sparse(tensors, opts)
        op = _operation(opts, op)

        def start(tensor: torch.Tensor) -> Part:
            reduction = reduction_of(op, tensor.dtype, self._size)
            buffer = reduction.prepare(tensor)
            request = self.communicator.Iallreduce(MPI.IN_PLACE, reduction.typed(buffer), reduction.operation)
            return Part(request, _concluded(reduction, buffer, tensor), buffer)

        return self._collective("allreduce", opts, [partial(start, tensor) for tensor in tensors], tensors, timeout)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None, root: int = 0, op: Any = None, timeout: Any = None) -> Any:
        (tensor,) = _listed(tensors)
        root = getattr(opts, "rootRank", root)
        reduction = reduction_of(_operation(opts, op), tensor.dtype, self._size)

        def start() -> Part:
            buffer = reduction.prepare(tensor)
            if self._rank != root:
                request = self.communicator.Ireduce(reduction.typed(buffer), None, reduction.operation, root)
                return Part(request, None, buffer)
            request = self.communicator.Ireduce(MPI.IN_PLACE, reduction.typed(buffer), reduction.operation, root)
            return Part(request, _concluded(reduction, buffer, tensor), buffer)

        return self._collective("reduce", opts, [start], [tensor], timeout)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        (output,) = _listed(outputs)
        parts = inputs[0] if isinstance(inputs[0], list | tuple) else inputs
        _check(len(parts) == self._size, f"reduce_scatter expects {self._size} inputs, got {len(parts)}")
        _check(output.numel() == parts[self._rank].numel(), "reduce_scatter: output and input differ in size")
        reduction = reduction_of(_operation(opts, op), output.dtype, self._size)
        start = self._scattered(reduction, output, parts, [part.numel() for part in parts])
        return self._collective("reduce_scatter", opts, [start], [output], timeout)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        starts = []
        for output, input in zip(outputs, inputs, strict=True):
            _check(
                input.numel() == output.numel() * self._size and input.dtype == output.dtype,
                f"reduce_scatter: input must be {self._size} times the output, of the same dtype",
            )
            reduction = reduction_of(_operation(opts, None), output.dtype, self._size)
            starts.append(self._scattered(reduction, output, [input], [output.numel()] * self._size))
        return self._collective("reduce_scatter_single", opts, starts, outputs)

    def _scattered(
        self, reduction: Reduction, output: torch.Tensor, inputs: Sequence[torch.Tensor], counts: list[int]
    ) -> Callable[[], Part]:
        def start() -> Part:
            source = reduction.prepare(inputs[0] if len(inputs) == 1 else joined(inputs))
            direct = is_host(output) and output.dtype == reduction.dtype and not overlap(output, source)
            buffer = output if direct else torch.empty(output.numel(), dtype=reduction.dtype)
            target = reduction.typed(buffer)
            if len(set(counts)) == 1:
                block = [memory(source), buffer.numel(), reduction.datatype]  # mpi4py expects the count of one block
                request = self.communicator.Ireduce_scatter_block(block, target, reduction.operation)
            else:
                whole = reduction.typed(source)
                request = self.communicator.Ireduce_scatter(whole, target, counts, reduction.operation)
            return Part(request, _concluded(reduction, buffer, output), source, buffer)

        return start

    def allreduce_sparse(self, tensors: Any, opts: Any = None) -> Any:
        """Sum sparse COO tensors: every rank gathers all entries."""
        (tensor,) = tensors
        op = _operation(opts, None)
        _check((op if isinstance(op, ReduceOp.RedOpType) else op.op) == ReduceOp.SUM, "sparse allreduce supports SUM")
        mine = tensor.detach().coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        self.all_gather_single(counts, torch.tensor([mine._nnz()])).wait()

        def gather(part: torch.Tensor) -> torch.Tensor:
            row = list(part.shape[1:])
            outputs = [torch.empty([int(count), *row], dtype=part.dtype) for count in counts]
            self.allgather([outputs], [part]).wait()
            return torch.cat(outputs)

        indices, values = gather(mine.indices().t().contiguous()), gather(mine.values())
        total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False).coalesce()

        def finish() -> None:
            with torch.no_grad():
                tensor.copy_(total)

        def start() -> Part:
            return Part(self.communicator.Ibarrier(), finish)

        return self._collective("allreduce_sparse", opts, [start], [tensor])

    # ---- Data movement: bytes, of any dtype

    def broadcast(self, tensors: Any, opts: Any = None, root: int = 0, timeout: Any = None) -> Any:
        tensors = _listed(tensors)
        root = getattr(opts, "rootRank", root)

        def start(tensor: torch.Tensor) -> Part:
            buffer = host(tensor)
            request = self.communicator.Ibcast([memory(buffer), MPI.BYTE], root)
            return Part(request, copied(buffer, tensor) if self._rank != root else None, buffer)

        return self._collective("broadcast", opts, [partial(start, tensor) for tensor in tensors], tensors, timeout)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        (tensor,) = _listed(inputs)
        parts = outputs[0] if isinstance(outputs[0], list | tuple) else outputs
        start = self._gathered(parts, tensor)
        return self._collective("allgather", opts, [start], parts, timeout)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        starts = [self._gathered([parts[i] for parts in outputs], tensor) for i, tensor in enumerate(inputs)]
        return self._collective("allgather_coalesced", opts, starts, [each for parts in outputs for each in parts])

    def _gathered(self, parts: Sequence[torch.Tensor], tensor: torch.Tensor) -> Callable[[], Part]:
        _check(len(parts) == self._size, f"allgather expects {self._size} outputs, got {len(parts)}")
        _check(
            parts[self._rank].numel() == tensor.numel() and all(part.dtype == tensor.dtype for part in parts),
            "allgather: input and output differ in size or dtype",
        )

        def start() -> Part:
            source, counts = host(tensor), [size_in_bytes(part) for part in parts]
            buffer = torch.empty(sum(counts), dtype=torch.uint8)
            if len(set(counts)) == 1:
                request = self.communicator.Iallgather([memory(source), MPI.BYTE], [memory(buffer), MPI.BYTE])
            else:
                request = self.communicator.Iallgatherv(
                    [memory(source), MPI.BYTE], [memory(buffer), counts, places(counts), MPI.BYTE]
                )
            return Part(request, parted(buffer, parts), source, buffer)

        return start

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def start(output: torch.Tensor, tensor: torch.Tensor) -> Part:
            _check(
                output.numel() == tensor.numel() * self._size and output.dtype == tensor.dtype,
                f"all_gather: output must be {self._size} times the input, of the same dtype",
            )
            source, buffer = host(tensor), writable(output)
            if overlap(source, buffer):
                source = source.clone()
            request = self.communicator.Iallgather([memory(source), MPI.BYTE], [memory(buffer), MPI.BYTE])
            return Part(request, copied(buffer, output), source, buffer)

        starts = [partial(start, output, tensor) for output, tensor in zip(outputs, inputs, strict=True)]
        return self._collective("all_gather_single", opts, starts, outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, root: int = 0, timeout: Any = None) -> Any:
        (tensor,) = _listed(inputs)
        root = getattr(opts, "rootRank", root)
        parts = (outputs[0] if outputs and isinstance(outputs[0], list | tuple) else outputs) or []
        if self._rank == root:
            _check(len(parts) == self._size, f"gather expects {self._size} outputs at the root, got {len(parts)}")
            _check(parts[root].numel() == tensor.numel(), "gather: input and output differ in size")

        def start() -> Part:
            source = host(tensor)
            if self._rank != root:
                return Part(self.communicator.Igatherv([memory(source), MPI.BYTE], None, root), None, source)
            counts = [size_in_bytes(part) for part in parts]
            buffer = torch.empty(sum(counts), dtype=torch.uint8)
            target = [memory(buffer), counts, places(counts), MPI.BYTE]
            request = self.communicator.Igatherv([memory(source), MPI.BYTE], target, root)
            return Part(request, parted(buffer, parts), source, buffer)

        return self._collective("gather", opts, [start], parts, timeout)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, root: int = 0, timeout: Any = None) -> Any:
        (output,) = _listed(outputs)
        root = getattr(opts, "rootRank", root)
        parts = (inputs[0] if inputs and isinstance(inputs[0], list | tuple) else inputs) or []
        if self._rank == root:
            _check(len(parts) == self._size, f"scatter expects {self._size} inputs at the root, got {len(parts)}")
            _check(parts[root].numel() == output.numel(), "scatter: input and output differ in size")

        def start() -> Part:
            buffer = torch.empty(output.shape, dtype=output.dtype)
            source, whole = None, None
            if self._rank == root:
                counts = [size_in_bytes(part) for part in parts]
                whole = joined(parts)
                source = [memory(whole), counts, places(counts), MPI.BYTE]
            request = self.communicator.Iscatterv(source, [memory(buffer), MPI.BYTE], root)
            return Part(request, copied(buffer, output), whole, buffer)

        return self._collective("scatter", opts, [start], [output], timeout)

    def all_to_all_single(  # noqa: PLR0917  # torch's signature
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> Any:
        sent, received = self._split(input, input_split_sizes), self._split(output, output_split_sizes)

        def start() -> Part:
            source, buffer = host(input), writable(output)
            if overlap(source, buffer):
                source = source.clone()
            request = self.communicator.Ialltoallv(
                [memory(source), sent, places(sent), MPI.BYTE], [memory(buffer), received, places(received), MPI.BYTE]
            )
            return Part(request, copied(buffer, output), source, buffer)

        return self._collective("all_to_all_single", opts, [start], [output], timeout)

    def _split(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        """Return the bytes for each rank of a tensor that is split along its first dimension."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            _check(rows % self._size == 0, f"all_to_all: {rows} rows cannot be split among {self._size} ranks")
            sizes = [rows // self._size] * self._size
        _check(len(sizes) == self._size and sum(sizes) == rows, f"all_to_all: splits {list(sizes)} of {rows} rows")
        return [size * (size_in_bytes(tensor) // rows if rows else 0) for size in sizes]

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        _check(len(outputs) == len(inputs) == self._size, f"all_to_all expects {self._size} inputs and as many outputs")

        def start() -> Part:
            sent, received = ([size_in_bytes(tensor) for tensor in tensors] for tensors in (inputs, outputs))
            source, buffer = joined(inputs), torch.empty(sum(received), dtype=torch.uint8)
            request = self.communicator.Ialltoallv(
                [memory(source), sent, places(sent), MPI.BYTE], [memory(buffer), received, places(received), MPI.BYTE]
            )
            return Part(request, parted(buffer, outputs), source, buffer)

        return self._collective("all_to_all", opts, [start], outputs, timeout)

    # ---- Barriers

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        return self._collective("barrier", opts, [lambda: Part(self.communicator.Ibarrier(), None)], [], timeout)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; rank 0 names those that do not arrive within the timeout."""
        seconds = _seconds(timeout)
        if seconds is None:
            seconds = self._seconds
        if seconds == 0:
            raise RuntimeError(f"Rank {self._rank} timed out in monitoredBarrier after 0 ms")
        arrival, departure = self._largest_tag + 1, self._largest_tag + 2
        token = torch.zeros(1)
        if self._rank != 0:
            try:
                self._message("monitored_barrier", token, 0, arrival, seconds, sends=True).wait()
                self._message("monitored_barrier", token, 0, departure, seconds, sends=False).wait()
            except RuntimeError as error:
                raise RuntimeError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0. Please check rank 0 logs for faulty rank. Original error: {error}"
                ) from error
            return
        others = range(1, self._size)
        arrivals = {
            rank: self._message("monitored_barrier", torch.zeros(1), rank, arrival, seconds, sends=False)
            for rank in others
        }
        missing = []
        for rank, operation in arrivals.items():
            try:
                operation.wait()
            except RuntimeError:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            raise RuntimeError(f"{ranks} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms")
        for operation in [
            self._message("monitored_barrier", token, rank, departure, seconds, sends=True) for rank in others
        ]:
            operation.wait()

    # ---- Point-to-point

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        (tensor,) = _listed(tensors)
        self._check_tag(tag)
        return self._message("send", tensor, dstRank, tag, self._seconds, sends=True)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        (tensor,) = _listed(tensors)
        self._check_tag(tag)
        return self._message("recv", tensor, srcRank, tag, self._seconds, sends=False)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _check_tag(self, tag: int) -> None:
        _check(0 <= tag <= self._largest_tag, f"invalid tag {tag}: must be between 0 and {self._largest_tag}")

    def _message(
        self, name: str, tensor: torch.Tensor, peer: int, tag: int, seconds: float, *, sends: bool
    ) -> Operation:
        with self._order:
            self._check_usable(name)
            title = f"{name} {'to' if sends else 'from'} rank {peer if peer >= 0 else 'any'}"
            finish: Finish = None
            if sends:
                buffer = host(tensor)
                request = self.communicator.Isend([memory(buffer), MPI.BYTE], peer, tag)
            else:
                buffer = writable(tensor)
                request = self.communicator.Irecv([memory(buffer), MPI.BYTE], peer, tag)
                copy = copied(buffer, tensor)

                def finish(statuses: Any) -> None:
                    received = statuses[0].Get_count(MPI.BYTE)
                    if received != size_in_bytes(buffer):
                        raise RuntimeError(f"{title}: expected {size_in_bytes(buffer)} bytes, got {received}")
                    if copy is not None:
                        copy()

            operation = Operation(
                title,
                requests=[request],
                finish=finish,
                result=[tensor],
                keep=buffer,
                seconds=seconds,
                group=self,
                number=None,
                entry=self.failures.recorder.record("send" if sends else "recv", None, self, [tensor], peer),
            )
        return self._started(operation, watch=name != "monitored_barrier")

    # ---- Coalescing and lifetime

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Batch:
        operations, self._batch = self._batch or [], None
        return Batch(operations)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls."""
        self._seconds = timeout.total_seconds()

    def abort(self) -> None:
        """Fail what is not complete, here and on the group's other ranks."""
        self.failures.give_up(self, 0, f"group {self.label}: abort was called")

    def shutdown(self) -> None:
        """Leave the group; every rank of it does."""
        if not self.failures.any and not MPI.Is_finalized():  # else operations may be pending on it
            self.communicator.Free()

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: the numbers start at zero."""

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collectives so far."""
        return self._number

    # ---- Machinery

    def publish(self, operation: Operation) -> None:
        """Write to the store what this rank waits for."""
        with contextlib.suppress(RuntimeError):  # the store's server may have ended
            self._store.set(f"waiting/{self._rank}", f"{operation.number} {operation.title}")

    def explain(self, operation: Operation) -> str:
        """Return which ranks have not arrived at this collective, as far as they have published it."""
        if operation.number is None:
            return "the other rank did not take part"
        missing = []
        for group_rank, rank in enumerate(self.ranks):
            if group_rank == self._rank:
                continue
            try:
                key = f"waiting/{group_rank}"
                text = self._store.get(key).decode() if self._store.check([key]) else ""
            except RuntimeError:
                return "the store does not answer"
            number, _, title = text.partition(" ")
            if not number.isdigit() or int(number) < operation.number:
                missing.append(f"rank {rank}" + (f" (waits in {title})" if title else ""))
        return f"not arrived: {', '.join(missing)}" if missing else "all ranks have arrived"

    def _check_usable(self, name: str) -> None:
        reason = self.failures.broken(self)
        if reason is not None:
            self.failures.recorder.dump(self.failures.rank)
            raise RuntimeError(f"{name}: group {self.label} cannot be used any more: {reason}")

    def _collective(
        self,
        name: str,
        opts: Any,
        starts: Sequence[Callable[[], Part]],
        result: Sequence[torch.Tensor],
        timeout: Any = None,
    ) -> Any:
        seconds = _seconds(timeout) or _seconds(getattr(opts, "timeout", None)) or self._seconds
        with self._order:
            self._check_usable(name)
            self._number += 1
            parts = [start() for start in starts]
            finishes = [part.finish for part in parts if part.finish is not None]

            def finish(_: Any) -> None:
                for each in finishes:
                    each()

            operation = Operation(
                name,
                requests=[part.request for part in parts],
                finish=finish if finishes else None,
                result=result,
                keep=parts,
                seconds=seconds,
                group=self,
                number=self._number,
                entry=self.failures.recorder.record(name, self._number, self, result),
            )
        return self._started(operation, watch=getattr(opts, "asyncOp", True))

    def _started(self, operation: Operation, *, watch: bool) -> Operation:
        if self._batch is not None:
            self._batch.append(operation)
        if watch:
            ENGINE.watch(operation)
        return operation

    # Names of torch 2.12 and earlier.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _operation(opts: Any, op: Any) -> Any:
    """Return the ReduceOp of a call: in its options, in their place, or SUM."""
    if op is not None:
        return op
    if isinstance(opts, ReduceOp | ReduceOp.RedOpType):
        return opts
    return getattr(opts, "reduceOp", ReduceOp.SUM)


def _seconds(timeout: Any) -> float | None:
    """Return a timeout in seconds; None if it is unset, which torch writes as a negative one."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds >= 0 else None


def _concluded(reduction: Reduction, buffer: torch.Tensor, tensor: torch.Tensor) -> Callable[[], None] | None:
    in_place = same(buffer, tensor)
    if in_place and not reduction.divides:
        return None

    def finish() -> None:
        reduction.conclude(buffer)
        if not in_place:
            tensor.detach().copy_(buffer.reshape(tensor.shape))

    return finish
