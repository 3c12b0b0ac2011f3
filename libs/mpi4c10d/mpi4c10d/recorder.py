"""The last calls of this rank, written in the format of torch's flight recorder when one of them fails.

``torchfrtrace`` compares the files of all ranks: which of them waits in which call, and from which line of the program.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Variables that name the files' prefix and the number of calls, torch's own first.
_PREFIX = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_LENGTH = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_CALLS = 2000
_FRAMES = 8
#: ``torchfrtrace`` reads this version, and accepts the names of torch's own backends and calls alone.
_VERSION, _BACKEND = "2.5", "gloo"
_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_sparse": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "ALLGATHER_coalesced",
    "all_gather_single": "_all_gather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
}


class Recorder:
    """The last calls, if a variable names a prefix for the files; otherwise nothing is recorded."""

    def __init__(self) -> None:
        self._prefix = next((os.environ[name] for name in _PREFIX if os.environ.get(name)), "")
        length = next((os.environ[name] for name in _LENGTH if os.environ.get(name, "").isdigit()), "")
        self._entries: deque[dict[str, Any]] = deque(maxlen=int(length or _CALLS))
        self._groups: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._number = 0

    def record(
        self, name: str, number: int | None, group: Any, tensors: Sequence[Any], peer: int | None = None
    ) -> dict[str, Any] | None:
        """Record a call and return its entry, which ``complete`` is called with; None if nothing is recorded.

        Args:
            name: of the call.
            number: position among the group's collectives; None for point-to-point.
            group: has ``label``, ``ranks`` and ``failures``.
            tensors: of its result.
            peer: rank in the group at the other end of a message.
        """
        if not self._prefix:
            return None
        shapes, dtypes = [list(each.shape) for each in tensors], [str(each.dtype)[6:] for each in tensors]
        me = group.ranks.index(group.failures.rank)
        arrow = {"send": f" {me}->{peer}", "recv": f" {me}<-{peer}"}.get(name, "")
        inputs, outputs = _sizes(name, shapes, len(group.ranks), me)
        entry = {
            "profiling_name": f"{_BACKEND}:{_NAMES.get(name, name)}{arrow}",
            "process_group": (group.label, "undefined"),
            "collective_seq_id": number or 0,
            "p2p_seq_id": 0,
            "input_sizes": inputs,
            "output_sizes": outputs,
            "input_dtypes": dtypes[:1],
            "output_dtypes": dtypes[:1],
            "time_created_ns": time.time_ns(),
            "is_p2p": number is None,
            "retired": False,
            "state": "started",
            "frames": _frames(),
        }
        with self._lock:
            entry["record_id"] = self._number
            self._number += 1
            self._groups[group.label] = {"name": group.label, "desc": "undefined", "ranks": str(list(group.ranks))}
            self._entries.append(entry)
        return entry

    def complete(self, entry: dict[str, Any] | None) -> None:
        """Note that the call has ended well."""
        if entry is not None:
            entry["state"], entry["retired"] = "completed", True

    def dump(self, rank: int) -> None:
        """Write the file of this rank, unless nothing is recorded."""
        if not self._prefix:
            return
        with self._lock:
            document = {
                "version": _VERSION,
                "pg_config": self._groups,
                "pg_status": {},
                "entries": list(self._entries),
            }
            file = Path(f"{self._prefix}{rank}")
            with contextlib.suppress(OSError):  # the failure itself matters more than its record
                beside = file.with_name(f".{file.name}.{os.getpid()}")
                beside.write_bytes(pickle.dumps(document))
                beside.replace(file)


def _sizes(name: str, shapes: list[list[int]], size: int, me: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the sizes of a call's inputs and outputs as ``torchfrtrace`` compares them."""
    if name == "allgather":
        return [shapes[me]], [[sum(map(math.prod, shapes))]]
    if name.startswith("all_gather_single"):
        return [[math.prod(shape) // size] for shape in shapes], shapes
    if name.startswith("reduce_scatter"):
        return [[math.prod(shape) * size] for shape in shapes], shapes
    return shapes or [[]], shapes or [[]]


def _frames() -> list[dict[str, Any]]:
    """Return the innermost frames of the program, which are outside torch and this package."""
    found: list[dict[str, Any]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < _FRAMES:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in {"torch", "mpi4c10d", "threading"}:
            code = frame.f_code
            found.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back  # type: ignore[assignment]
    return found
