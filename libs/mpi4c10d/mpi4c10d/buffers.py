"""Tensors as memory that MPI reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from mpi4py import MPI


def host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values contiguous in host memory, without a gradient; the tensor's own memory if they are."""
    tensor = tensor.detach()
    if is_host(tensor):
        return tensor
    if tensor.dtype.is_complex:
        tensor = tensor.resolve_conj()
    return tensor.resolve_neg().cpu().contiguous()


def is_host(tensor: torch.Tensor) -> bool:
    """Return True if MPI can write into the tensor itself."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def memory(tensor: torch.Tensor) -> Any:
    """Return a buffer over the memory of a contiguous tensor of any dtype."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def size_in_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the tensor's elements."""
    return tensor.numel() * tensor.element_size()


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors in one."""
    return torch.cat([host(tensor.detach()).reshape(-1) for tensor in tensors])


def places(counts: Sequence[int]) -> list[int]:
    """Return the offset of each block."""
    return list(accumulate(counts, initial=0))[:-1]


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a buffer for the tensor: itself if MPI can write there."""
    return tensor if is_host(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype)


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if the contiguous tensors share memory."""
    first, second = (each.data_ptr() for each in (one, other))
    return first < second + size_in_bytes(other) and second < first + size_in_bytes(one)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if the tensors are the same contiguous memory."""
    return one.data_ptr() == other.data_ptr() and one.is_contiguous() and other.is_contiguous()


def copied(buffer: torch.Tensor, tensor: torch.Tensor) -> Callable[[], None] | None:
    """Return what copies the buffer into the tensor, or None if they are the same."""
    if same(buffer, tensor):
        return None
    return lambda: put(tensor, buffer)


def put(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values of the same number into the tensor."""
    tensor.detach().copy_(values.view(tensor.dtype).reshape(tensor.shape))


def parted(buffer: torch.Tensor, parts: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Return what copies the bytes of the buffer into the parts, in turn."""

    def copy() -> None:
        begin = 0
        for part in parts:
            end = begin + size_in_bytes(part)
            if end > begin:
                part.detach().view_as(part).copy_(typed(buffer[begin:end], part.dtype).reshape(part.shape))
            begin = end

    return copy


def typed(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return bytes as elements of the dtype; those at an odd offset are copied first."""
    if values.storage_offset() % dtype.itemsize:
        values = values.clone()
    return values.view(dtype)
