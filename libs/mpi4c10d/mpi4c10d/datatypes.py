"""MPI datatypes and reductions of torch's dtypes and ReduceOps."""

from __future__ import annotations

import functools
from typing import Any

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp

from mpi4c10d.buffers import host, memory

_DATATYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.uint8: MPI.UINT8_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
    torch.bool: MPI.C_BOOL,
}
#: MPI has no sums of these: they travel as float32 and are rounded once at the end.
_NARROW = frozenset(
    getattr(torch, name)
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    if hasattr(torch, name)
)
_KIND = ReduceOp.RedOpType
_OPERATIONS = {
    _KIND.SUM: MPI.SUM,
    _KIND.AVG: MPI.SUM,
    _KIND.PREMUL_SUM: MPI.SUM,
    _KIND.PRODUCT: MPI.PROD,
    _KIND.MIN: MPI.MIN,
    _KIND.MAX: MPI.MAX,
    _KIND.BAND: MPI.BAND,
    _KIND.BOR: MPI.BOR,
    _KIND.BXOR: MPI.BXOR,
}
_LOGICAL = {
    _KIND.SUM: MPI.LOR,
    _KIND.MAX: MPI.LOR,
    _KIND.BOR: MPI.LOR,
    _KIND.PRODUCT: MPI.LAND,
    _KIND.MIN: MPI.LAND,
    _KIND.BAND: MPI.LAND,
    _KIND.BXOR: MPI.LXOR,
}
_BITWISE = frozenset({_KIND.BAND, _KIND.BOR, _KIND.BXOR})
_ORDERED = frozenset({_KIND.MIN, _KIND.MAX})


class Reduction:
    """A ReduceOp on tensors of one dtype, as MPI does it.

    Args:
        op: a ``ReduceOp``, or its kind.
        dtype: the tensors' dtype.
        size: number of ranks that take part; AVG divides by it.
    """

    def __init__(self, op: Any, dtype: torch.dtype, size: int) -> None:
        kind = op if isinstance(op, _KIND) else op.op
        self.dtype = torch.float32 if dtype in _NARROW else dtype
        floating = dtype.is_floating_point or dtype.is_complex
        if (
            self.dtype not in _DATATYPES
            or (kind in _BITWISE and floating)
            or (kind in _ORDERED and dtype.is_complex)
            or (kind not in (_LOGICAL if dtype == torch.bool else _OPERATIONS))
        ):
            raise TypeError(f"ReduceOp.{kind.name} is not defined for {dtype}")
        self.datatype = _DATATYPES[self.dtype]
        self.operation = (_LOGICAL if dtype == torch.bool else _OPERATIONS)[kind]
        self._divisor = size if kind == _KIND.AVG else None
        self._factor = op.__getstate__()[1] if kind == _KIND.PREMUL_SUM else None

    @property
    def divides(self) -> bool:
        """True if ``conclude`` changes results."""
        return self._divisor is not None

    def prepare(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what MPI reads: contiguous, on the host; shares the tensor's memory if that is possible."""
        if self._factor is not None:
            tensor = tensor.detach() * self._factor
        return host(tensor).to(self.dtype)

    def conclude(self, result: torch.Tensor) -> None:
        """Finish a result in place."""
        if self._divisor is not None:
            if result.dtype.is_floating_point or result.dtype.is_complex:
                result.div_(self._divisor)
            else:
                result.div_(self._divisor, rounding_mode="trunc")

    def typed(self, tensor: torch.Tensor) -> list[Any]:
        """Return the buffer specification of a prepared tensor."""
        return [memory(tensor), tensor.numel(), self.datatype]


def reduction_of(op: Any, dtype: torch.dtype, size: int) -> Reduction:
    """Return the reduction, which calls share unless it has a factor of its own."""
    kind = op if isinstance(op, _KIND) else op.op
    return Reduction(op, dtype, size) if kind == _KIND.PREMUL_SUM else _shared_reduction(kind, dtype, size)


_shared_reduction = functools.cache(Reduction)
