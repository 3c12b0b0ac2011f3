"""``hidl run -- PROGRAM`` on a real Slurm: each launcher passes words on, and ranks meet with MPI and without."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hidl_cli.quoting import sh_line
from tests.cluster.cluster import LivingCluster
from tests.conftest import PROGRAMS, Hidl
from tests.runs.test_own_program import SHOW
from tests.tiers import deep
from tests.waiting import patience

SITE = ("--site", "test-cluster")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that all nodes share, in which hidl is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show.py").write_text(SHOW)
    return tmp_path


@pytest.mark.parametrize(
    ("launcher", "stack"),
    [("srun", "mpi"), deep("mpiexec", "mpi"), deep("srun", "openmpi"), deep("mpirun", "openmpi")],
)
def test_each_launcher_passes_words_on_as_typed(
    on_cluster: Callable[..., Hidl], here: Path, launcher: str, stack: str
) -> None:
    hidl = on_cluster(stack)
    typed = ["a b", "$HOME", "x;y", "ünï", "a\nb", "", ":", "%41", "it's", "*", "{x}", "--", "--nodes"]
    options = ["--stack", stack, "--launcher", launcher, "--nodes", "2", "--ranks-per-node", "2"]
    done = hidl("run", *SITE, *options, "--", "python", "show.py", *typed)
    assert done.returncode == 0, done.stderr
    (run,) = hidl.runs.iterdir()
    ranks = sorted(map(json.loads, (run / "stdout.log").read_text().splitlines()), key=lambda rank: rank["RANK"])
    assert [rank["words"] for rank in ranks] == [typed] * 4
    assert [(rank["RANK"], rank["LOCAL_RANK"], rank["LOCAL_WORLD_SIZE"]) for rank in ranks] == [
        ("0", "0", "2"),
        ("1", "1", "2"),
        ("2", "0", "2"),
        ("3", "1", "2"),
    ]
    assert {(rank["directory"], rank["MASTER_ADDR"], rank["WORLD_SIZE"]) for rank in ranks} == {
        (str(here), "node1", "4")
    }


@pytest.mark.parametrize(("launcher", "stack"), [("srun", "mpi"), deep("mpiexec", "mpi"), deep("mpirun", "openmpi")])
def test_rank_0_alone_reads_the_standard_input(
    on_cluster: Callable[..., Hidl], here: Path, launcher: str, stack: str
) -> None:
    """srun by itself would give it to all ranks."""
    hidl = on_cluster(stack)
    data = bytes(range(256)) * 20_000
    (here / "data").write_bytes(data)
    script = "import os, sys; print(os.environ['RANK'], len(sys.stdin.buffer.read()))"
    options = ["--stack", stack, "--launcher", launcher, "--nodes", "2", "--ranks-per-node", "2", "--no-mpi"]
    with (here / "data").open("rb") as file:
        done = hidl.start("run", *SITE, *options, "--", "python", "-c", script, stdin=file)
        assert done.wait(patience(300)) == 0
    (run,) = hidl.runs.iterdir()
    printed = sorted((run / "stdout.log").read_text().splitlines())
    assert printed == [f"0 {len(data)}", "1 0", "2 0", "3 0"]


@pytest.mark.deep
def test_a_c_program_gets_a_scaling_verdict(on_cluster: Callable[..., Hidl], here: Path) -> None:
    hidl = on_cluster("mpi")
    compiled = hidl("stack", "exec", *SITE, "mpi", "--", "mpicc", str(PROGRAMS / "pi.c"), "-o", "pi")
    assert compiled.returncode == 0, compiled.stderr
    study = hidl("run", *SITE, "--scale", "1,2", "--repeat", "3", "--json", "--", "./pi", "100000")
    assert study.returncode in (0, 10, 11), study.stderr
    assert json.loads(study.stdout)["verdict"]["study"]["metric"] == "wall_time"


@pytest.mark.parametrize(("backend", "options"), [deep("gloo", ("--no-mpi",)), deep("mpi4py", ())])
def test_ranks_of_a_pytorch_program_meet_between_nodes(
    on_cluster: Callable[..., Hidl], here: Path, backend: str, options: tuple[str, ...]
) -> None:
    hidl = on_cluster("pytorch")
    program = ["python", str(PROGRAMS / "mnist.py"), "--images=64", "--batch-size=32", f"--backend={backend}"]
    done = hidl("run", *SITE, "--stack", "pytorch", "--nodes", "2", *options, "--", *program)
    assert done.returncode == 0, done.stderr
    (run,) = hidl.runs.iterdir()
    assert "Train Epoch: 1" in (run / "stdout.log").read_text()


def test_a_directory_that_nodes_do_not_share_is_named(
    on_cluster: Callable[..., Hidl], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidl = on_cluster("mpi")
    own = Path(tempfile.mkdtemp(prefix="hidl-", dir="/dev/shm"))
    try:
        monkeypatch.chdir(own)
        done = hidl("run", *SITE, "--nodes", "2", "--", "hostname")
    finally:
        own.rmdir()
    assert done.returncode == 8
    assert "start hidl in a directory that all nodes share" in done.stderr


ENVIRONMENT = """
import json, os, sys
names = ("RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
found = {name: os.environ.get(name) for name in names}
found["task"] = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
found["workers"] = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
sys.stdout.write(json.dumps(found) + chr(10))
"""


@pytest.mark.parametrize(("launcher", "stack"), [("srun", "mpi"), ("mpiexec", "mpi"), ("mpirun", "openmpi")])
def test_the_environment_of_a_rank_describes_that_rank(
    on_cluster: Callable[..., Hidl], here: Path, launcher: str, stack: str
) -> None:
    """The daemons of mpiexec and mpirun are tasks of a Slurm step, whose variables the ranks inherit."""
    hidl = on_cluster(stack)
    (here / "environment.py").write_text(ENVIRONMENT)
    options = ["--stack", stack, "--launcher", launcher, "--nodes", "2", "--ranks-per-node", "2", "--no-mpi"]
    done = hidl("run", *SITE, *options, "--", "python", "environment.py")
    assert done.returncode == 0, done.stderr
    (run,) = hidl.runs.iterdir()
    ranks = sorted(map(json.loads, (run / "stdout.log").read_text().splitlines()), key=lambda rank: rank["RANK"])
    workers = ranks[0].pop("workers")
    assert [each.partition(":")[0] for each in workers] == ["node1", "node1", "node2", "node2"]
    assert len(set(workers)) == 4
    assert [each.pop("workers") for each in ranks[1:]] == [workers] * 3
    assert ranks == [
        {
            "RANK": str(rank),
            "GROUP_RANK": str(rank // 2),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % 2),
            "SLURM_NODEID": str(rank // 2),
            "SLURM_NTASKS": "4",
            "SLURM_STEP_NUM_TASKS": "4",
            "task": rank,
        }
        for rank in range(4)
    ]


@pytest.mark.parametrize(("launcher", "stack"), [("mpiexec", "mpi"), deep("mpirun", "openmpi")])
def test_daemons_that_slurm_starts_with_pmix_leave_nothing_of_it_to_ranks(
    on_cluster: Callable[..., Hidl], here: Path, launcher: str, stack: str
) -> None:
    """As with MpiDefault=pmix: MPICH 5 fails in MPI_Init if it finds PMI_SIZE and PMIX_NAMESPACE."""
    hidl = on_cluster(stack)
    file = hidl.config / "sites" / "pmix.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    policies = "policies: {environment: {SLURM_MPI_TYPE: pmix}}"
    file.write_text(f"name: pmix\ntitle: pmix by default\nextends: test-cluster\n{policies}\n")
    options = ["--stack", stack, "--launcher", launcher, "--nodes", "2", "--ranks-per-node", "2", "--no-check"]
    done = hidl("install", stack, "--site", "pmix", "--verify", "skip")
    assert done.returncode == 0, done.stderr
    done = hidl("run", "--site", "pmix", *options, "--", "python", str(PROGRAMS / "pi_mpi4py.py"), "--intervals", "9")
    assert done.returncode == 0, done.stderr
    (run,) = hidl.runs.iterdir()
    assert "on 4 ranks" in (run / "stdout.log").read_text()


def test_ranks_meet_at_the_name_and_the_interface_that_the_site_sets(
    on_cluster: Callable[..., Hidl], here: Path
) -> None:
    hidl = on_cluster("mpi")
    file = hidl.config / "sites" / "test-cluster.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = {"address_suffix": "i", "socket_interface": "ib0"}
    file.write_text(json.dumps({"name": "test-cluster", "extends": "test-cluster", **keys}))
    names = ("MASTER_ADDR", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    script = f"import os; print(*map(os.environ.get, {names}))"
    for nodes, address in (("2", "node1i"), ("1", "127.0.0.1")):
        done = hidl("run", *SITE, "--no-mpi", "--nodes", nodes, "--json", "--", "python", "-c", script)
        assert done.returncode == 0, done.stderr
        run = hidl.runs / json.loads(done.stdout)["run"]
        assert set((run / "stdout.log").read_text().splitlines()) == {f"{address} ib0 ib0"}


@pytest.mark.parametrize(
    ("launcher", "stack"), [("srun", "mpi"), ("mpiexec", "mpi"), ("mpirun", "openmpi"), deep("srun", "openmpi")]
)
def test_named_variables_reach_all_ranks(
    on_cluster: Callable[..., Hidl], here: Path, launcher: str, stack: str
) -> None:
    hidl = on_cluster(stack)
    options = ["--stack", stack, "--launcher", launcher, "--nodes", "2", "--ranks-per-node", "2", "--no-mpi"]
    named = ["--env-var", "OWN_VALUE=a b;$HOME'", "--env-var", "OWN_TAKEN", "--env-var", "PYTHONPATH=/x"]
    names = ("OWN_VALUE", "OWN_TAKEN", "OWN_OTHER")
    script = f"import os; print(*map(os.environ.get, {names}), os.environ['PYTHONPATH'].split(':')[-1], sep='|')"
    variables = {"OWN_TAKEN": "taken", "OWN_OTHER": "other"}
    done = hidl("run", *SITE, *options, *named, "--json", "--", "python", "-c", script, **variables)
    assert done.returncode == 0, done.stderr
    printed = (hidl.runs / json.loads(done.stdout)["run"] / "stdout.log").read_text().splitlines()
    assert printed == ["a b;$HOME'|taken|other|/x"] * 4


def test_a_batch_script_runs_once_as_if_it_had_been_submitted(on_cluster: Callable[..., Hidl], here: Path) -> None:
    hidl = on_cluster()
    script = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=5 --output=mine.%j\n"
    script += 'cd "$SLURM_SUBMIT_DIR"\necho "once in $PWD: $1"\nsrun hostname\nexit 3\n'
    (here / "job.sh").write_text(script)
    done = hidl("run", *SITE, "--", "./job.sh", "a b")
    assert done.returncode == 8
    assert "status 3" in done.stderr
    assert "not carried over: --output=mine.%j" in " ".join(done.stderr.split())
    (run,) = hidl.runs.iterdir()
    first, *hosts = (run / "stdout.log").read_text().splitlines()
    assert (first, sorted(hosts)) == (f"once in {here}: a b", ["node1", "node2"])


def test_steps_of_a_batch_script_do_not_share_cores(on_cluster: Callable[..., Hidl], here: Path) -> None:
    """As outside hidl, the second of two steps with one core each waits if there is only one core."""
    hidl = on_cluster()
    step = "srun --ntasks=1 --exact sh -c 'echo begin; sleep 2; echo end' &\n"
    (here / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --time=5\n{2 * step}wait\n")
    done = hidl("run", *SITE, "--", "./job.sh")
    assert done.returncode == 0, done.stderr
    (run,) = hidl.runs.iterdir()
    assert (run / "stdout.log").read_text().split() == ["begin", "end", "begin", "end"]


def test_a_run_within_an_allocation_uses_it(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, here: Path
) -> None:
    hidl = on_cluster("mpi")

    def within(
        *arguments: str, program: Sequence[str] = ("sh", "-c", "echo $SLURM_JOB_ID $(hostname)")
    ) -> tuple[str, str, int]:
        """The job's id, and the output and status of hidl within an allocation of two nodes."""
        line = sh_line([*hidl.command("run", *SITE, *arguments), "--", *program])
        script = f"cd {here}; echo $SLURM_JOB_ID; {line} 2>&1; echo $?"
        done = cluster("salloc", "--nodes=2", "--time=5", "bash", "-c", script, **hidl.environment)
        job, *said, status = done.stdout.splitlines()
        return job, "\n".join(said), int(status)

    job, said, status = within("--nodes", "2", "--ranks-per-node", "1", "--no-mpi")
    assert status == 0, said
    assert f"using allocation {job}, in which hidl runs" in " ".join(said.split())
    (run,) = hidl.runs.iterdir()
    assert sorted((run / "stdout.log").read_text().splitlines()) == [f"{job} node1", f"{job} node2"]
    assert hidl("status").returncode == 0

    job, said, status = within("--nodes", "3", "--no-mpi")
    assert status == 6
    assert f"3 nodes requested, but allocation {job}, in which hidl runs, has 2" in " ".join(said.split())

    for option in (["--after", run.name], ["--begin", "+1:00:00"], ["--mem", "1G"], ["--account", "mine"], ["--hold"]):
        job, said, status = within(*option, "--no-mpi")
        assert status == 2
        expected = f"{option[0]} applies only to new jobs, but hidl is running in allocation {job}"
        assert expected in " ".join(said.split())

    (here / "job.sh").write_text("#!/bin/bash\n#SBATCH --account=mine --mem=1G\nexit 3\n")
    _, said, status = within(program=["./job.sh"])
    assert (status, "the script's requests do not change the allocation" in " ".join(said.split())) == (8, True)

    _, said, status = within("--nodes", "3", "--no-mpi", "--new-job", "--dry-run")
    assert (status, "#SBATCH --nodes=3" in said) == (0, True)
