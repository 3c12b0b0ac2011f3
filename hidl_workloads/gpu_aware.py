"""Query of the MPI library of this process for support of GPU memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hidl_workloads import mpi_library

_QUERIES = {"cuda": ("MPIX_Query_cuda_support",), "rocm": ("MPIX_Query_rocm_support", "MPIX_Query_hip_support")}
_GPU_QUERY = "MPIX_GPU_query_support"
_GPU_TYPES = {"cuda": 0, "rocm": 2}  # MPICH's MPIX_GPU_SUPPORT_CUDA and _HIP
_VARIABLES = (
    ("MVAPICH2", ("MV2_USE_CUDA", "MV2_USE_ROCM")),  # MVAPICH2-GDR
    ("MVAPICH", ("MVP_USE_CUDA", "MVP_USE_ROCM", "MPIR_CVAR_ENABLE_GPU")),  # MVAPICH-Plus, MVAPICH 4
)


@dataclass(frozen=True)
class Answer:
    """The library's statement that it is GPU-aware or not (None: unknown), and the source of that statement."""

    aware: bool | None
    source: str


def ask(
    vendor: str = "cuda",
    *,
    libraries: Iterable[Path] | None = None,
    version: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Answer:
    """Ask the loaded MPI library, after ``MPI_Init``; ``vendor``: ``cuda`` or ``rocm``.

    A library without the functions for it is unknown, but for MVAPICH, whose variables tell.
    """
    version = mpi_library.version() if version is None else version
    for path in (mpi_library.mapped() or ()) if libraries is None else libraries:
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        answers = _answers(library, vendor)
        if answers:
            said = ", ".join(f"{name}: {int(answer)}" for name, answer in answers.items())
            return Answer(any(answers.values()), f"{path.name} answers {said}")
    for family, names in _VARIABLES:
        if version.startswith(family):
            on = [name for name in names if environment.get(name) == "1"]
            if on:
                return Answer(True, f"{version} with {on[0]}=1")
            return Answer(False, f"{version} without {' or '.join(f'{name}=1' for name in names)}")
    return Answer(None, f"{version} does not report it")


def has_nonblocking_collectives(version: str | None = None) -> bool:
    """Return True if non-blocking collectives of a GPU-aware library accept GPU memory; those of Open MPI do not.

    It supports the blocking ones alone (https://www.open-mpi.org/faq/?category=runcuda), and crashes in the others.
    """
    version = mpi_library.version() if version is None else version
    return not version.startswith("Open MPI")


def _answers(library: ctypes.CDLL, vendor: str) -> dict[str, bool]:
    answers = {}
    for name in _QUERIES[vendor]:
        if (query := getattr(library, name, None)) is not None:
            answers[name] = bool(query())
    if (query := getattr(library, _GPU_QUERY, None)) is not None:
        supported = ctypes.c_int(0)
        if query(ctypes.c_int(_GPU_TYPES[vendor]), ctypes.byref(supported)) == 0:
            answers[_GPU_QUERY] = bool(supported.value)
    return answers
