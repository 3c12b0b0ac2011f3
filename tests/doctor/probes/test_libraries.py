"""What is found of MPI libraries and launchers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.doctor.probes.libraries import Starter, built_for, probe
from hidl_cli.runs.prepare import Request, prepare
from tests.doctor.machines import context, host, installed, local, slurm
from tests.site.recording import recorded

OPEN_MPI = "mpiexec (Open MPI) 5.0.3\n"
HYDRA = "HYDRA build details:\n"
PREFIX = Path("/stacks/mpi/1")


@pytest.mark.parametrize(("said", "starts"), [(OPEN_MPI, "openmpi"), (HYDRA, "mpich"), ("2.0\n", None)])
def test_the_first_mpiexec_on_path_tells_whose_ranks_it_starts(said: str, starts: str | None) -> None:
    machine = host(None, "mpiexec", answers={"mpiexec --version": said})
    assert probe(context(machine, installation=installed(PREFIX))).mpiexec == Starter("/usr/bin/mpiexec", starts)  # type: ignore[arg-type]


def test_of_a_site_that_this_host_is_no_part_of_no_program_is_looked_for() -> None:
    machine = host(None, "mpiexec", answers={"mpiexec --version": OPEN_MPI})
    found = probe(context(machine, slurm(), installed(PREFIX)))
    assert (found.mpiexec, found.program_is_there) == (None, None)


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
    plan = prepare(Request("mpi-sanity", site="mine", hypothetical=True))
    found = probe(context(host(None, *programs), local(), installed(PREFIX), plan=plan))
    assert found.mpiexec is not None
    assert found.mpiexec.place == place


@pytest.mark.parametrize("family", ["mpich", "mvapich2"])
def test_what_srun_offers_is_held_against_what_the_library_wants(family: str) -> None:
    machine = recorded("test-cluster")
    site = slurm(launchers=["srun"], match={"hostname": machine.hostname})
    found = probe(context(machine, site, installed(PREFIX, family)))
    assert (found.job.mpi_type, found.offered) == ("pmi2", ("pmix", "none", "cray_shasta", "pmi2", "pmix_v4"))


def test_the_launchers_program_may_come_with_modules() -> None:
    site = slurm(launchers=["mpiexec"], mpi={"x": {"family": "mpich", "modules": ["mpich/4"]}}, default_mpi="x")
    assert probe(context(host(None, "sbatch"), site, installed(PREFIX))).program_is_there is None


def test_a_launcher_that_is_gone_from_the_stack(tmp_path: Path) -> None:
    assert probe(context(host(), installation=installed(tmp_path))).program_is_there is False


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
    assert (found.abi, found.asked_abi) == ("mpich", "openmpi")


def test_but_not_where_the_site_keeps_the_environment_back() -> None:
    site = slurm(policies={"export": "none"})
    assert probe(context(host(MPI4PY_MPIABI="openmpi"), site, installed(PREFIX))).asked_abi is None
