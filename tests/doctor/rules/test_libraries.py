"""Rules about MPI libraries and launchers, on recorded facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hidl_cli.doctor.probes.job import Job
from hidl_cli.doctor.probes.libraries import Libraries, Starter
from hidl_cli.doctor.rules.libraries import RULES
from hidl_cli.mpi import Library
from tests.doctor.cases import Case, both_ways, named, severity

MPICH = Library("mpi", "mpich", version="5.0.2", prefix="/stacks/mpi/1")
OWN = "/stacks/mpi/1/bin/mpiexec"
JOB = Job(MPICH, "mpiexec", OWN)
HERE = Libraries(JOB, "mpich", "/stacks/mpi/1", mpi4py=frozenset({"mpich", "openmpi"}), program_is_there=True)
THEIRS = Starter("/usr/bin/mpiexec", "openmpi")
BY_NAME = Job(replace(MPICH, prefix=None), "mpiexec", "mpiexec", planned=True)
BY_HAND = replace(JOB, is_active=True)
SLURM = replace(HERE, on_this_host=False, job=replace(JOB, launcher="srun", program="srun", mpi_type="pmi2"))

CASES: list[Case] = [
    ("HD002", "another's first in a shell with the stack", replace(HERE, job=BY_HAND, mpiexec=THEIRS), "error"),
    ("HD002", "another's where the plan names none by its path", replace(HERE, job=BY_NAME, mpiexec=THEIRS), "error"),
    ("HD002", "another's, and no stack is activated", replace(HERE, mpiexec=THEIRS), "info"),
    ("HD002", "its kin's", replace(HERE, job=BY_HAND, mpiexec=Starter("/usr/bin/mpiexec", "mpich")), None),
    ("HD002", "its own", replace(HERE, job=BY_HAND, mpiexec=Starter(OWN, None)), None),
    ("HD002", "none on PATH", HERE, None),
    ("HD002", "no stack", Libraries(Job(), mpiexec=THEIRS), None),
    ("HD004", "compiled against Open MPI", replace(HERE, mpi4py=frozenset({"openmpi"})), "error"),
    ("HD004", "a variable names Open MPI", replace(HERE, asked_abi="openmpi"), "error"),
    ("HD004", "a variable names MPICH", replace(HERE, asked_abi="mpich"), None),
    ("HD004", "a wheel for both", HERE, None),
    ("HD004", "the standard ABI", replace(HERE, mpi4py=frozenset({"mpiabi"})), None),
    ("HD004", "it is not known", replace(HERE, mpi4py=None), None),
    ("HD005", "not in the list", replace(SLURM, offered=("none", "pmix", "pmix_v4")), "error"),
    ("HD005", "in the list", replace(SLURM, offered=("none", "pmi2")), None),
    ("HD005", "srun does not answer", SLURM, None),
    ("HD005", "another launcher", replace(HERE, offered=("none",)), None),
    ("HD007", "gone from the stack", replace(HERE, program_is_there=False), "error"),
    ("HD007", "gone from this machine", replace(HERE, job=BY_NAME, program_is_there=False), "error"),
    ("HD007", "not on the login node", replace(SLURM, program_is_there=False), "warning"),
    ("HD007", "the job's modules bring it", replace(HERE, program_is_there=None), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_is_tried_both_ways() -> None:
    assert both_ways(RULES, CASES)
