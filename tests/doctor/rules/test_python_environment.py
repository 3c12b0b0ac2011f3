"""Rules about an environment of the user's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hidl_cli.doctor.rules.python import ENVIRONMENT_RULES, PythonEnvironment, probe_environment
from tests.doctor.cases import Case, has_both_ways, named, severity
from tests.doctor.machines import context, host

OF_OPENMPI = PythonEnvironment(
    "/home/me/venv", linked={"mpi4py": ("openmpi",)}, library="mpi", family="mpich", abi="mpich"
)
GOOD = replace(OF_OPENMPI, linked={"mpi4py": ("mpiabi", "mpich", "openmpi")})
CONDA = replace(GOOD, kind="conda", linked={"mpi4py": ("mpich",)}, own_abi="mpich", library="mv2", family="mvapich2")

CASES: list[Case] = [
    ("HD070", "mpi4py of Open MPI on MPICH", OF_OPENMPI, "error"),
    ("HD070", "a program without MPI", replace(OF_OPENMPI, uses_mpi=False), "warning"),
    ("HD070", "Horovod alone", replace(GOOD, linked={**GOOD.linked, "horovod": ("openmpi",)}), "error"),
    ("HD070", "Horovod without MPI", replace(GOOD, linked={**GOOD.linked, "horovod": ()}), None),
    ("HD070", "wheels serve both", GOOD, None),
    ("HD070", "the ABI of the standard", replace(GOOD, linked={"mpi4py": ("mpiabi",)}), None),
    ("HD070", "no mpi4py", replace(GOOD, linked={}), None),
    ("HD071", "conda's MPICH beside the site's", CONDA, "warning"),
    ("HD071", "it is the run's", replace(CONDA, is_own=True), None),
    ("HD071", "a venv", replace(CONDA, kind="venv"), None),
    ("HD071", "nothing of it uses MPI", replace(CONDA, linked={}), None),
    ("HD072", "CPU build on GPUs", replace(GOOD, torch="2.6.0+cpu", gpus=4), "warning"),
    ("HD072", "CPU build on CPUs", replace(GOOD, torch="2.6.0+cpu"), None),
    ("HD072", "CUDA build", replace(GOOD, torch="2.6.0", gpus=4), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(ENVIRONMENT_RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(ENVIRONMENT_RULES, CASES)


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        (OF_OPENMPI, "hidl run --stack openmpi --mpi stack"),
        (replace(OF_OPENMPI, fitting="ompi5"), "hidl run --mpi ompi5"),
        (replace(OF_OPENMPI, own_abi="openmpi"), "hidl run --mpi stack (the environment's own library)"),
    ],
)
def test_the_fix_is_a_library_that_fits(facts: PythonEnvironment, fix: str) -> None:
    (finding,) = ENVIRONMENT_RULES.findings(facts)
    assert finding.fix.startswith(fix)


def test_without_an_environment_nothing_is_known() -> None:
    assert probe_environment(context(host(None))) is None
