"""Rules about MPI libraries and launchers, on recorded facts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.doctor.examine import PlannedJob
from hidl_cli.doctor.rules.libraries import RULES, Libraries, Starter, built_for, probe
from hidl_cli.mpi import Library
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from tests.doctor.cases import Case, has_both_ways, named, severity
from tests.doctor.machines import context, host, installed, local, slurm
from tests.site.recording import recorded

OPEN_MPI = "mpiexec (Open MPI) 5.0.3\n"
HYDRA = "HYDRA build details:\n"
PREFIX = Path("/stacks/mpi/1")


@pytest.mark.parametrize(("said", "starts"), [(OPEN_MPI, "openmpi"), (HYDRA, "mpich"), ("2.0\n", None)])
def test_the_first_mpiexec_on_path_reports_whose_ranks_it_starts(said: str, starts: str | None) -> None:
    machine = host(None, "mpiexec", answers={"mpiexec --version": said})
    assert probe(context(machine, installation=installed(PREFIX))).mpiexec == Starter("/usr/bin/mpiexec", starts)  # type: ignore[arg-type]


def test_of_a_site_that_this_host_is_not_a_part_of_no_program_is_looked_for() -> None:
    machine = host(None, "mpiexec", answers={"mpiexec --version": OPEN_MPI})
    found = probe(context(machine, slurm(), installed(PREFIX)))
    assert (found.mpiexec, found.program_exists) == (None, None)


@pytest.mark.parametrize(
    ("programs", "place"),
    [
        (("mpicc", "mpiexec"), "/usr/bin/mpiexec"),  # the job script looks for the wrapper
        (("mpiexec",), "/stacks/mpi/1/bin/mpiexec"),  # else the stack's own is the first, once it is activated
    ],
)
def test_a_job_on_a_library_that_is_on_path_takes_what_lies_beside_mpicc(
    config: Path, programs: tuple[str, ...], place: str
) -> None:
    file = config / "sites" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("{name: mine, title: a, extends: local, mpi: {theirs: {family: mpich}}, default_mpi: theirs}")
    plan = prepare(RunRequest("mpi-sanity", site="mine", hypothetical=True))
    found = probe(context(host(None, *programs), local(), installed(PREFIX), plan=plan))
    assert found.mpiexec is not None
    assert found.mpiexec.path == place


@pytest.mark.parametrize("family", ["mpich", "mvapich2"])
def test_what_srun_offers_is_held_against_what_the_library_wants(family: str) -> None:
    machine = recorded("test-cluster")
    site = slurm(launchers=["srun"], match={"hostname": machine.hostname})
    found = probe(context(machine, site, installed(PREFIX, family)))
    assert (found.job.mpi_type, found.supported_types) == ("pmi2", ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4"))


def test_the_launchers_program_may_come_with_modules() -> None:
    site = slurm(launchers=["mpiexec"], mpi={"x": {"family": "mpich", "modules": ["mpich/4"]}}, default_mpi="x")
    assert probe(context(host(None, "sbatch"), site, installed(PREFIX))).program_exists is None


def test_a_launcher_that_is_gone_from_the_stack(tmp_path: Path) -> None:
    assert probe(context(host(), installation=installed(tmp_path))).program_exists is False


def test_a_wheel_of_mpi4py_serves_both_abis(stack_prefix: Callable[[str], Path]) -> None:
    assert built_for(installed(stack_prefix("mpi"))) == {"mpich", "openmpi"}


@pytest.mark.parametrize(("soname", "abi"), [("libmpi.so.12", "mpich"), ("libmpi.so.40", "openmpi")])
def test_a_compiled_mpi4py_is_of_the_library_that_it_is_linked_to(tmp_path: Path, soname: str, abi: str) -> None:
    library = tmp_path / soname
    modules = tmp_path / "lib" / "python3.11" / "site-packages" / "mpi4py"
    modules.mkdir(parents=True)
    link = ["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o"]
    subprocess.run([*link, library, f"-Wl,-soname,{soname}"], check=True)
    module = modules / "MPI.cpython-311-x86_64-linux-gnu.so"
    subprocess.run([*link, module, "-Wl,--no-as-needed", "-x", "none", library], check=True)
    assert built_for(installed(tmp_path)) == {abi}


def test_a_variable_that_names_an_abi_reaches_the_ranks() -> None:
    found = probe(context(host(MPI4PY_MPIABI="openmpi"), installation=installed(PREFIX)))
    assert (found.abi, found.requested_abi) == ("mpich", "openmpi")


def test_but_not_where_the_site_keeps_the_environment_back() -> None:
    site = slurm(policies={"export": "none"})
    assert probe(context(host(MPI4PY_MPIABI="openmpi"), site, installed(PREFIX))).requested_abi is None


MPICH = Library("mpi", "mpich", version="5.0.2", prefix="/stacks/mpi/1")
OWN = "/stacks/mpi/1/bin/mpiexec"
JOB = PlannedJob(MPICH, "mpiexec", OWN)
HERE = Libraries(JOB, "mpich", "/stacks/mpi/1", mpi4py=frozenset({"mpich", "openmpi"}), program_exists=True)
THEIRS = Starter("/usr/bin/mpiexec", "openmpi")
BY_NAME = PlannedJob(replace(MPICH, prefix=None), "mpiexec", "mpiexec", planned=True)
BY_HAND = replace(JOB, is_active=True)
SLURM = replace(HERE, on_this_host=False, job=replace(JOB, launcher="srun", program="srun", mpi_type="pmi2"))

CASES: list[Case] = [
    ("HD002", "another's first in a shell with the stack", replace(HERE, job=BY_HAND, mpiexec=THEIRS), "error"),
    ("HD002", "another's where the plan names none by its path", replace(HERE, job=BY_NAME, mpiexec=THEIRS), "error"),
    ("HD002", "another's, and no stack is activated", replace(HERE, mpiexec=THEIRS), "info"),
    ("HD002", "its kin's", replace(HERE, job=BY_HAND, mpiexec=Starter("/usr/bin/mpiexec", "mpich")), None),
    ("HD002", "its own", replace(HERE, job=BY_HAND, mpiexec=Starter(OWN, None)), None),
    ("HD002", "none on PATH", HERE, None),
    ("HD002", "no stack", Libraries(PlannedJob(), mpiexec=THEIRS), None),
    ("HD004", "compiled against Open MPI", replace(HERE, mpi4py=frozenset({"openmpi"})), "error"),
    ("HD004", "a variable names Open MPI", replace(HERE, requested_abi="openmpi"), "error"),
    ("HD004", "a variable names MPICH", replace(HERE, requested_abi="mpich"), None),
    ("HD004", "a wheel for both", HERE, None),
    ("HD004", "the standard ABI", replace(HERE, mpi4py=frozenset({"mpiabi"})), None),
    ("HD004", "it is not known", replace(HERE, mpi4py=None), None),
    ("HD005", "not in the list", replace(SLURM, supported_types=("none", "pmix", "pmix_v4")), "error"),
    ("HD005", "in the list", replace(SLURM, supported_types=("none", "pmi2")), None),
    ("HD005", "srun does not answer", SLURM, None),
    ("HD005", "another launcher", replace(HERE, supported_types=("none",)), None),
    ("HD007", "gone from the stack", replace(HERE, program_exists=False), "error"),
    ("HD007", "gone from this machine", replace(HERE, job=BY_NAME, program_exists=False), "error"),
    ("HD007", "not on the login node", replace(SLURM, program_exists=False), "warning"),
    ("HD007", "the job's modules bring it", replace(HERE, program_exists=None), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(RULES, CASES)
