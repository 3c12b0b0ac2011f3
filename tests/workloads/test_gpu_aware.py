"""What MPI libraries say of GPU memory: those that have a function for it, and MVAPICH's variables."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from hidl_workloads.gpu_aware import ask, has_nonblocking_collectives

QUERY = "int MPIX_Query_cuda_support(void) { return %d; }"
GPU_QUERY = "int MPIX_GPU_query_support(int type, int *is) { *is = type == %d; return 0; }"
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def library(directory: Path, source: str) -> Path:
    """A library of its own, loaded."""
    (directory / "stub.c").write_text(source + "\nint stub(void) { return 0; }\n")
    made = directory / "libmpi.so.12"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, directory / "stub.c"], check=True)
    ctypes.CDLL(str(made))
    return made


@needs_cc
@pytest.mark.parametrize(
    ("source", "vendor", "aware"),
    [
        (QUERY % 1, "cuda", True),
        (QUERY % 0, "cuda", False),
        (GPU_QUERY % 0, "cuda", True),
        (GPU_QUERY % 2, "cuda", False),
        (GPU_QUERY % 2, "rocm", True),
        (QUERY % 0 + GPU_QUERY % 0, "cuda", True),
        (QUERY % 1, "rocm", None),
        ("", "cuda", None),
    ],
)
def test_the_library_is_asked(tmp_path: Path, source: str, vendor: str, aware: bool | None) -> None:
    answer = ask(vendor, libraries=[library(tmp_path, source)], version="MPICH Version: 3.2", environment={})
    assert answer.aware is aware


@pytest.mark.parametrize(
    ("version", "variables", "aware"),
    [
        ("MVAPICH2-GDR 2.3.7", {"MV2_USE_CUDA": "1"}, True),
        ("MVAPICH2-GDR 2.3.7", {"MVP_USE_CUDA": "1"}, False),
        ("MVAPICH-Plus Version 4.0", {"MVP_USE_CUDA": "1"}, True),
        ("MVAPICH Version 4.0", {"MPIR_CVAR_ENABLE_GPU": "1"}, True),
        ("MVAPICH Version 4.0", {"MV2_USE_CUDA": "1"}, False),
        ("Cray MPICH 8.1", {"MV2_USE_CUDA": "1"}, None),
    ],
)
def test_variables_of_mvapich_tell_where_the_library_does_not(
    version: str, variables: dict[str, str], aware: bool | None
) -> None:
    assert ask(libraries=[], version=version, environment=variables).aware is aware


@pytest.mark.parametrize(
    ("version", "nonblocking"),
    [("Open MPI v4.1.4, package: Debian OpenMPI", False), ("MPICH Version: 5.0.2", True), ("MVAPICH2-GDR 2.3.7", True)],
)
def test_open_mpi_takes_gpu_memory_in_blocking_collectives_alone(version: str, nonblocking: bool) -> None:
    assert has_nonblocking_collectives(version) is nonblocking
