"""What users meet on the twin of a site: its limits, its modules, its launchers, on a real Slurm."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from tests.cluster.twin.conftest import SITE, Twin
from tests.conftest import Hidl
from tests.tiers import deep

RUN = ("run", "mpi-sanity", "--site", SITE)
#: Slurm is asked, and not hidl: a script of a user's own.
SBATCH = ("sbatch", "--parsable", "-p", "rtx-dev", "-t", "5", "-A", "X", "-o", "/dev/null", "--wrap", "hostname")


def test_slurm_shows_the_sites_partitions_with_their_limits(twin: Twin) -> None:
    printed = twin("sinfo", "-h", "-o", "%R %l %s").stdout
    assert set(printed.split("\n")[:-1]) == {"rtx 2-00:00:00 1-16", "rtx-dev 2:00:00 1-2"}


def test_the_nodes_have_the_sites_gpus_counted(twin: Twin) -> None:
    assert set(twin("sinfo", "-h", "-N", "-o", "%G").stdout.split()) == {"gpu:4"}


def test_lmod_offers_every_module_that_the_file_names_and_no_other(twin: Twin) -> None:
    named = {"cmake", "cuda/10.0", "cudnn/7.6.2", "gcc/8.3.0", "gcc/9.1.0", "nccl/2.4.7"}
    offered = set(twin("bash", "-c", "module --terse avail 2>&1 | grep -v ':$'").stdout.split())
    plain = {module for module in offered if not module.endswith("/")}
    assert plain >= named
    assert {module.partition("/")[0] for module in plain - named} == {"impi", "mvapich2", "mvapich2-gdr"}


def test_what_a_module_brings_says_what_the_file_says_it_is(twin: Twin) -> None:
    told = twin("bash", "-c", "module load mvapich2-gdr; mpiname -a; module load gcc/8.3.0; gcc -dumpfullversion")
    assert told.stdout.split() == ["MVAPICH2-GDR", "2.3.7", "8.3.0"]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="this machine has no cmake")
def test_a_module_brings_the_program_of_its_name(twin: Twin) -> None:
    found = twin("bash", "-c", "module load cmake; command -v cmake; cmake --version | head -n 1").stdout
    assert found.startswith(str(twin.cluster.directory))
    assert "cmake version" in found


@pytest.mark.parametrize("launcher", ["mpirun_rsh", deep("ibrun")])
def test_a_run_passes_through_the_sites_launchers_and_the_modules_mpi(twin: Twin, launcher: str) -> None:
    arguments = ("--nodes", "2", "--ranks-per-node", "2", "--account", "X", "--launcher", launcher)
    found = twin.json(*RUN, *arguments)
    (step,) = found["steps"]
    assert (found["verdict"]["verdict"], step["ranks"]) == ("pass", 4)
    assert str(twin.cluster.directory) in step["metrics"]["mpi_library"]["value"]


def test_a_metric_is_read_though_tmpdir_of_the_login_host_is_not_on_the_nodes(twin: Twin) -> None:
    program = 'from mpi4py import MPI; print("sum", MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), flush=True)'
    size = ("--nodes", "2", "--ranks-per-node", "1", "--account", "X", "--launcher", "mpirun_rsh")
    command = Hidl.command("run", "--site", SITE, *size, "--metric", "sum=sum ([0-9]+)", "--json", "--", "python")
    done = twin("env", "TMPDIR=/no/such/directory", *command, "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = json.loads(done.stdout)["steps"]
    assert step["metrics"]["sum"]["value"] == 3


def test_the_installation_was_verified_in_a_job_with_the_sites_mpi(twin: Twin) -> None:
    (found,) = twin.json("install", "mpi", "--site", SITE)["installations"]
    verification = found["verification"]
    assert found["action"] == "nothing to do"
    assert (verification["where"], verification["mpi"]["family"]) == ("job", "mvapich2-gdr")
    assert verification["job"]


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        (("--partition", "rtx-dev", "--nodes", "16"), "allows 1 to 2"),
        (("--nodes", "2", "--time", "49:00:00"), "48:00:00"),
    ],
)
def test_what_is_beyond_the_sites_limits_is_refused_before_submission(
    twin: Twin, asked: tuple[str, ...], limit: str
) -> None:
    done = twin.hidl(*RUN, "--account", "X", *asked)
    assert (done.returncode, limit in done.stderr) == (6, True), done.stderr


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("-N", "16"), "Node count specification invalid"),
        (("-N", "2", "-t", "49:00:00"), "Requested time limit is invalid"),
        (("-N", "1", "-w", "rtx-001"), "refuses jobs that name nodes"),
    ],
)
def test_slurm_refuses_it_too(twin: Twin, asked: tuple[str, ...], words: str) -> None:
    done = twin(*SBATCH[:-2], *asked, *SBATCH[-2:])
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr


@pytest.mark.deep
def test_without_enforced_limits_a_job_beyond_them_waits_and_hidl_says_why(twin: Twin) -> None:
    """The file that users have knows no limits, so that hidl asks Slurm; Slurm takes the job, and never starts it."""
    own = f"name: {SITE}\nextends: {SITE}\npartitions:\n  rtx-dev: {{node_type: rtx, max_nodes: 90, max_wall: null}}\n"
    file = twin.cluster.directory / "users" / "config" / "hidl" / "sites" / f"{SITE}.yaml"
    before = file.read_text() if file.is_file() else None
    with twin.cluster.restored():
        twin.cluster.switch(enforce_limits=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(own)
        try:
            done = twin.hidl(*RUN, "--account", "X", "--partition", "rtx-dev", "--nodes", "3")
        finally:
            file.unlink() if before is None else file.write_text(before)
    assert (done.returncode, "MaxNodes=2" in done.stderr) == (6, True), done.stderr


def test_no_users_directory_of_this_machine_is_touched(twin: Twin) -> None:
    program = "import json, os; print(json.dumps([v for k, v in os.environ.items() if k.startswith('XDG_')]))"
    homes = json.loads(twin(sys.executable, "-c", program).stdout)
    own = [home for home in homes if home.startswith(str(twin.cluster.directory / "users"))]
    assert len(own) == 3
