"""Call random collectives on random tensors, and compare each result with NumPy's on every rank.

Arguments: the first seed, and the number of seeds. Each seed is one call, from which its ranks, sizes, dtype, layout,
ReduceOp and ``async_op`` follow.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]
MOVED = [*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32]
OPS = {
    dist.ReduceOp.SUM: np.add,
    dist.ReduceOp.AVG: np.add,
    dist.ReduceOp.PRODUCT: np.multiply,
    dist.ReduceOp.MIN: np.minimum,
    dist.ReduceOp.MAX: np.maximum,
    dist.ReduceOp.BAND: np.bitwise_and,
    dist.ReduceOp.BOR: np.bitwise_or,
    dist.ReduceOp.BXOR: np.bitwise_xor,
}
BITWISE = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]


class Case:
    """Collectives drawn from one seed, the same on every rank.

    Attributes:
        ranks: the members of the group.
        values: by position in the group, what that rank contributes.
    """

    def __init__(self, seed: int, groups: dict[tuple[int, ...], Any]) -> None:
        self.draw = random.Random(seed)
        self.ranks = self.draw.choice(list(groups))
        self.group = groups[self.ranks]
        self.size = len(self.ranks)
        self.me = self.ranks.index(dist.get_rank()) if dist.get_rank() in self.ranks else -1
        self.kind = self.draw.choice(KINDS)
        self.asynchronous = self.draw.random() < 0.5
        self.strided = self.draw.random() < 0.3
        self.generator = torch.Generator().manual_seed(seed)

    def count(self) -> int:
        return self.draw.choice([0, 1, 2, 7, 64, 1000, 20000])

    def tensor(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        values = torch.randint(0, 5, shape, generator=self.generator)
        return values.to(dtype) if dtype != torch.bool else values > 2

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy, with gaps between its elements if the case wants it."""
        if not self.strided or tensor.dim() != 1:
            return tensor.clone()
        wide = torch.zeros(max(1, 2 * len(tensor)), dtype=tensor.dtype)[: 2 * len(tensor) : 2]
        return wide.copy_(tensor)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return room for such a tensor, filled with other values."""
        return self.laid_out(torch.zeros_like(tensor))

    def finish(self, work: Any) -> None:
        if self.asynchronous:
            assert work.wait()
            if type(work) is not dist.Work:  # from 2.14 on, torch wraps a backend's work, and forwards only wait()
                assert work.is_completed()
        else:
            assert work is None

    def options(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.asynchronous}

    def reduction(self) -> tuple[Any, torch.dtype]:
        op = self.draw.choice(list(OPS))
        dtypes = [*INTEGERS, torch.bool] if op in BITWISE else DTYPES
        if op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            dtypes = [dtype for dtype in dtypes if not dtype.is_complex]
        if op == dist.ReduceOp.AVG:
            dtypes = FLOATS
        return op, self.draw.choice(dtypes)


def reduced(op: Any, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Reduce with NumPy."""
    dtype = tensors[0].dtype
    wide = [tensor.float() if dtype in (torch.float16, torch.bfloat16) else tensor for tensor in tensors]
    total = OPS[op].reduce([tensor.numpy() for tensor in wide])
    if op == dist.ReduceOp.AVG:
        total = total / len(tensors)
    return torch.from_numpy(np.asarray(total)).to(dtype)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    if got.dtype in FLOATS and got.numel():
        torch.testing.assert_close(got, expected)
    else:
        mine, theirs = (joined([each]).view(torch.uint8) for each in (got, expected))
        assert torch.equal(mine, theirs), (got, expected)


def all_reduce(case: Case) -> None:
    op, dtype = case.reduction()
    inputs = [case.tensor(dtype, count) for count in [case.count()] * case.size]
    if case.me >= 0:
        tensor = case.laid_out(inputs[case.me])
        case.finish(dist.all_reduce(tensor, op, **case.options()))
        same(tensor, reduced(op, inputs))


def reduce(case: Case) -> None:
    op, dtype = case.reduction()
    inputs = [case.tensor(dtype, count) for count in [case.count()] * case.size]
    root = case.draw.randrange(case.size)
    if case.me >= 0:
        tensor = case.laid_out(inputs[case.me])
        case.finish(dist.reduce(tensor, case.ranks[root], op, **case.options()))
        same(tensor, reduced(op, inputs) if case.me == root else inputs[case.me])


def reduce_scatter(case: Case) -> None:
    op, dtype = case.reduction()
    even = case.draw.random() < 0.5
    counts = [case.count()] * case.size if even else [case.count() for _ in range(case.size)]
    inputs = [[case.tensor(dtype, count) for count in counts] for _ in range(case.size)]
    whole = even and case.draw.random() < 0.5
    if case.me >= 0:
        expected = reduced(op, [parts[case.me] for parts in inputs])
        output = case.like(expected)
        if whole:
            case.finish(dist.reduce_scatter_tensor(output, torch.cat(inputs[case.me]), op, **case.options()))
        else:
            parts = [case.laid_out(part) for part in inputs[case.me]]
            case.finish(dist.reduce_scatter(output, parts, op, **case.options()))
        same(output, expected)


def broadcast(case: Case) -> None:
    inputs = [case.tensor(dtype, count) for count, dtype in [(case.count(), case.draw.choice(MOVED))] * case.size]
    root = case.draw.randrange(case.size)
    if case.me >= 0:
        tensor = case.laid_out(inputs[case.me])
        case.finish(dist.broadcast(tensor, case.ranks[root], **case.options()))
        same(tensor, inputs[root])


def all_gather(case: Case) -> None:
    dtype, even = case.draw.choice(MOVED), case.draw.random() < 0.5
    counts = [case.count()] * case.size if even else [case.count() for _ in range(case.size)]
    inputs = [case.tensor(dtype, count) for count in counts]
    whole = even and case.draw.random() < 0.5
    if case.me >= 0:
        mine = case.laid_out(inputs[case.me])
        if whole:
            output = torch.zeros(sum(counts), dtype=torch.uint8).to(dtype)
            case.finish(dist.all_gather_into_tensor(output, mine, **case.options()))
            same(output, torch.cat([each.view(torch.uint8) for each in inputs]).view(dtype) if len(output) else output)
        else:
            outputs = [case.like(tensor) for tensor in inputs]
            case.finish(dist.all_gather(outputs, mine, **case.options()))
            for output, expected in zip(outputs, inputs, strict=True):
                same(output, expected)


def gather(case: Case) -> None:
    dtype = case.draw.choice(MOVED)
    inputs = [case.tensor(dtype, count) for count in [case.count()] * case.size]
    root = case.draw.randrange(case.size)
    if case.me >= 0:
        outputs = [case.like(tensor) for tensor in inputs] if case.me == root else None
        case.finish(dist.gather(case.laid_out(inputs[case.me]), outputs, case.ranks[root], **case.options()))
        for output, expected in zip(outputs or [], inputs, strict=False):
            same(output, expected)


def scatter(case: Case) -> None:
    dtype = case.draw.choice(MOVED)
    parts = [case.tensor(dtype, count) for count in [case.count()] * case.size]
    root = case.draw.randrange(case.size)
    if case.me >= 0:
        output = case.like(parts[case.me])
        given = [case.laid_out(part) for part in parts] if case.me == root else None
        case.finish(dist.scatter(output, given, case.ranks[root], **case.options()))
        same(output, parts[case.me])


def all_to_all(case: Case) -> None:
    dtype = case.draw.choice(MOVED)
    even = case.draw.random() < 0.4
    count = case.count()
    counts = [[count if even else case.count() for _ in range(case.size)] for _ in range(case.size)]
    parts = [[case.tensor(dtype, each) for each in row] for row in counts]
    single = case.draw.random() < 0.5
    if case.me < 0:
        return
    expected = [parts[rank][case.me] for rank in range(case.size)]
    if not single:
        outputs = [case.like(tensor) for tensor in expected]
        case.finish(dist.all_to_all(outputs, [case.laid_out(part) for part in parts[case.me]], **case.options()))
        for output, each in zip(outputs, expected, strict=True):
            same(output, each)
        return
    sent, received = counts[case.me], [counts[rank][case.me] for rank in range(case.size)]
    splits = (None, None) if even else (received, sent)
    output = torch.zeros(sum(received), dtype=torch.uint8).to(dtype)
    case.finish(dist.all_to_all_single(output, joined(parts[case.me]), *splits, **case.options()))
    same(output, joined(expected))


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors of any dtype, among them those that ``torch.cat`` does not know."""
    total = torch.cat([part.clone(memory_format=torch.contiguous_format).view(torch.uint8) for part in parts])
    return total.view(parts[0].dtype)


def point_to_point(case: Case) -> None:
    dtype, tag = case.draw.choice(MOVED), case.draw.randrange(1000)
    inputs = [case.tensor(dtype, case.count()) for _ in range(case.size)]
    anywhere = case.draw.random() < 0.3 and case.size == 2
    if case.me < 0 or case.size < 2:
        return
    source, target = ((case.me + step) % case.size for step in (-1, 1))
    output = case.like(inputs[source])
    sending = dist.isend(case.laid_out(inputs[case.me]), case.ranks[target], case.group, tag)
    found = dist.recv(output, None if anywhere else case.ranks[source], case.group, tag)
    sending.wait()
    assert found == case.ranks[source]
    same(output, inputs[source])


def coalesced(case: Case) -> None:
    dtype = case.draw.choice([*FLOATS, *INTEGERS])
    counts = [3, case.draw.choice([0, 50])]
    inputs = [[case.tensor(dtype, count) for count in counts] for _ in range(case.size)]
    if case.me >= 0:
        tensors = [case.laid_out(tensor) for tensor in inputs[case.me]]
        with dist._coalescing_manager(case.group, async_ops=case.asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor, group=case.group)
        if case.asynchronous:
            manager.wait()
        for i, tensor in enumerate(tensors):
            same(tensor, reduced(dist.ReduceOp.SUM, [each[i] for each in inputs]))


def premultiplied(case: Case) -> None:
    dtype = case.draw.choice([torch.float32, torch.float64])
    inputs = [case.tensor(dtype, count) for count in [case.count()] * case.size]
    if case.me >= 0:
        tensor = case.laid_out(inputs[case.me])
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.25), group=case.group)
        same(tensor, reduced(dist.ReduceOp.SUM, [each * 0.25 for each in inputs]))


def sparse(case: Case) -> None:
    dense = [case.tensor(torch.float32, 6, 4) * (torch.arange(6) % 3 == i % 3)[:, None] for i in range(case.size)]
    if case.me >= 0:
        tensor = dense[case.me].to_sparse(case.draw.choice([1, 2]))
        dist.all_reduce(tensor, group=case.group)
        same(tensor.to_dense(), sum(dense))


def objects(case: Case) -> None:
    values = [{"rank": rank, "seed": case.draw.random()} for rank in range(case.size)]
    if case.me >= 0:
        gathered: list[Any] = [None] * case.size
        dist.all_gather_object(gathered, values[case.me], group=case.group)
        assert gathered == values
        received = [values if case.me == 0 else None]
        dist.broadcast_object_list(received, case.ranks[0], group=case.group)
        assert received == [values]


def barriers(case: Case) -> None:
    monitored = case.draw.random() < 0.5
    if case.me >= 0 and monitored:
        dist.monitored_barrier(case.group)
    elif case.me >= 0:
        case.finish(dist.barrier(case.group, async_op=case.asynchronous))


def futures(case: Case) -> None:
    """A callback that issues a collective and waits for it."""
    value = case.draw.randrange(100)
    if case.me >= 0:
        first = dist.all_reduce(torch.full((3,), value), group=case.group, async_op=True).get_future()

        def again(future: Any) -> torch.Tensor:
            (tensor,) = future.value()
            dist.all_reduce(tensor, group=case.group, async_op=True).get_future().wait()
            return tensor

        assert first.then(again).wait().tolist() == [value * case.size**2] * 3


KINDS = [
    *(all_reduce, all_reduce, reduce, reduce_scatter, broadcast, all_gather, gather, scatter, all_to_all),
    *(point_to_point, coalesced, premultiplied, sparse, objects, barriers, futures),
]


def main() -> None:
    first, number = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    size = dist.get_world_size()
    chosen = {tuple(range(size)), (0, size - 1), tuple(range(1, size))}
    groups = {
        ranks: dist.group.WORLD if len(ranks) == size else dist.new_group(list(ranks)) for ranks in sorted(chosen)
    }
    for seed in range(first, first + number):
        case = Case(seed, groups)
        try:
            case.kind(case)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {case.kind.__name__} on {case.ranks}") from error
    dist.barrier()
    dist.destroy_process_group()
    print("done", flush=True)


if __name__ == "__main__":
    main()
