"""The rule about GPUs and the MPI library, on recorded facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hidl_cli.doctor.probes.gpus import Gpus
from hidl_cli.doctor.probes.job import Job
from hidl_cli.doctor.rules.gpus import RULES
from hidl_cli.mpi import Library
from tests.doctor.cases import Case, both_ways, named, severity

JOB = Job(Library("mpi", "mpich", version="5.0.2", prefix="/stacks/mpi/1"))
PLANNED = replace(JOB, planned=True)

CASES: list[Case] = [
    ("HD020", "GPU memory is handed to MPI", Gpus(PLANNED, 4, device_buffers=True, cuda_aware=False), "error"),
    ("HD020", "it may be", Gpus(JOB, 4, cuda_aware=False), "info"),
    ("HD020", "what is planned does not", Gpus(PLANNED, 4, cuda_aware=False), None),
    ("HD020", "the library takes it", Gpus(PLANNED, 4, device_buffers=True, cuda_aware=True), None),
    ("HD020", "nobody knows", Gpus(PLANNED, 4, device_buffers=True), None),
    ("HD020", "no GPUs", Gpus(JOB, 0, cuda_aware=False), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_is_tried_both_ways() -> None:
    assert both_ways(RULES, CASES)
