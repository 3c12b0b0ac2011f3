"""A device of PyTorch whose memory is not the host's, as a GPU's is not: what would touch it there raises an error.

Its tensors hold the host's, by which everything is computed, so results are the host's bit for bit. A process has one
device, ``opaque:0``; backward passes run in a thread of their own, as on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "opaque"
#: What MPI has of the device's memory: until it is given back, computations may not touch it.
LENT: list[OpaqueTensor] = []
_aten = torch.ops.aten
#: Kernels that take tensors of both devices: copies from one to the other.
_COPIES = (_aten.copy_.default, _aten._copy_from.default, _aten._to_copy.default)


class Lent(RuntimeError):
    """A computation touches memory that MPI has."""


class OpaqueTensor(torch.Tensor):
    """A tensor on the device; ``held``: the host's, which the tests alone may touch."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OpaqueTensor:
        self: OpaqueTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        self.held = held
        return self

    @property
    def data(self) -> OpaqueTensor:
        """The tensor without a graph; other data bring their memory along."""
        found: OpaqueTensor = torch.Tensor.data.__get__(self)
        return found

    @data.setter
    def data(self, other: OpaqueTensor) -> None:
        torch.Tensor.data.__set__(self, other)
        self.held = other.held

    def data_ptr(self) -> int:
        """Return an address that the host cannot read."""
        return self.held.data_ptr() + 2**47

    @classmethod
    def __torch_dispatch__(cls, kernel: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the host, what is on the device alone."""
        kwargs = dict(kwargs or {})
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if kernel not in _COPIES and any(each.ndim and not isinstance(each, cls) for each in tensors):
            raise RuntimeError(f"{kernel}: tensors are on {NAME}:0 and on the host")
        if torch.Tag.inplace_view in kernel.tags:
            raise NotImplementedError(f"{kernel} on {NAME}")
        if not kernel.is_view and any(_is_lent(each.held) for each in tensors if isinstance(each, cls)):
            raise Lent(f"{kernel} touches memory of the device that MPI has")
        stays = True
        if kwargs.get("device") is not None:
            stays = _is_this(kwargs["device"])
            kwargs["device"] = torch.device("cpu")
        owners = {id(each.held): each for each in tensors if isinstance(each, cls)}

        def wrap(result: Any) -> Any:
            if id(result) in owners:
                return owners[id(result)]
            return cls(result) if stays and isinstance(result, torch.Tensor) else result

        return tree_map(wrap, kernel(*tree_map(_held, args), **tree_map(_held, kwargs)))


def _is_lent(held: torch.Tensor) -> bool:
    """Whether a tensor begins in memory that MPI has."""
    return any(0 <= held.data_ptr() - each.held.data_ptr() < each.held.nbytes for each in LENT)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OpaqueTensor) else value


def _is_this(device: torch.device) -> bool:
    if device.type == NAME and device.index not in (None, 0):
        raise RuntimeError(f"there is no device {device}")
    return device.type == NAME


def _empty(size: Any, **options: Any) -> OpaqueTensor:
    return OpaqueTensor(torch.empty(size, **_on_host(options)))


def _empty_strided(size: Any, stride: Any, **options: Any) -> OpaqueTensor:
    return OpaqueTensor(torch.empty_strided(size, stride, **_on_host(options)))


def _on_host(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a tensor of this device for the host's."""
    assert _is_this(options["device"])
    return {name: value for name, value in options.items() if name in ("dtype", "memory_format") and value is not None}


_LIBRARY = torch.library.Library("aten", "IMPL")


def register() -> torch.device:
    """Let PyTorch know the device, before the first backward pass: that starts the devices' threads."""
    _setup_privateuseone_for_python_backend(NAME)
    getattr(torch, NAME).get_amp_supported_dtype = list  # checkpoints ask each device that there is
    _LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
    _LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
    return torch.device(NAME, 0)
