"""The world that a framework forms is the launched one, or the run ends: real frameworks on real ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import Hidl
from tests.tiers import deep
from tests.waiting import patience

ALONE = """
import os, tempfile, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
"""
JOINED = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.ones(1) * dist.get_rank()
dist.all_reduce(ranks)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {ranks.item():g}" + chr(10), end="", flush=True)
dist.destroy_process_group()
"""
SPAWNED = """
import os, sys, torch.distributed as dist, torch.multiprocessing as mp
def work(local, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=local, world_size=2)
    dist.barrier()
if __name__ == "__main__":
    mp.spawn(work, args=(int(os.environ["MASTER_PORT"]) + 7 + int(os.environ["RANK"]),), nprocs=2)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that all nodes share, in which hidl is started."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("alone", ALONE), ("joined", JOINED), ("spawned", SPAWNED)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def run(hidl: Hidl, name: str, *options: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    chosen = ["--stack", "pytorch", "--ranks-per-node", str(ranks), "--no-mpi", *options]
    return hidl("run", *chosen, "--", "python", f"{name}.py")


@pytest.mark.real
def test_ranks_that_each_form_a_world_end_the_run_with_both_numbers(hidl_with: Callable[..., Hidl], here: Path) -> None:
    hidl = hidl_with("pytorch")
    done = run(hidl, "alone")
    assert done.returncode == 8
    assert "torch.distributed: its world has 1 process(es), but 2 were launched" in done.stderr
    assert "(HD628)" in done.stderr
    assert run(hidl, "alone", "--separate-ranks").returncode == 0
    assert run(hidl, "alone", ranks=1).returncode == 0


@pytest.mark.real
def test_one_world_of_all_ranks_is_accepted(hidl_with: Callable[..., Hidl], here: Path) -> None:
    hidl = hidl_with("pytorch")
    done = run(hidl, "joined")
    assert done.returncode == 0, done.stderr
    (directory,) = hidl.runs.iterdir()
    printed = sorted((directory / "stdout.log").read_text().splitlines())
    assert printed == ["rank 0 of 2: 1", "rank 1 of 2: 1"]


@pytest.mark.real
def test_two_worlds_of_the_launched_size_end_the_run(hidl_with: Callable[..., Hidl], here: Path) -> None:
    """Each rank starts two processes: 2 are launched, and each world has 2."""
    hidl = hidl_with("pytorch")
    done = run(hidl, "spawned")
    assert done.returncode == 8
    (directory,) = hidl.runs.iterdir()
    said = (directory / "stderr.log").read_text()
    assert re.search("launched ranks (0 and 1|1 and 0) are both rank 0 of a world of 2", said)
    assert run(hidl, "spawned", ranks=1).returncode == 0  # one rank may start as many as it likes


def test_the_check_leaves_the_program_its_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    check = Path(__file__).parents[2] / "hidl_workloads" / "world_check"
    environment = {"PYTHONPATH": f"{check}:{tmp_path}", "HIDL_RANK": "0", "HIDL_EXPECTED_WORLD": "2"}
    command = [sys.executable, "-c", "import sys; print(sys.modules['sitecustomize'].__file__, len(sys.path))"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    plain = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert done.stdout == plain.stdout


@pytest.mark.real
def test_mpi4py_in_an_image_must_form_the_launched_world(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    (installed,) = hidl_with("mpi").json("install", "mpi")["installations"]
    programs = Path(installed["prefix"]) / "bin"
    check = Path(__file__).parents[2] / "hidl_workloads" / "world_check"
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(check),
        "HIDL_RANK": "0",
        "HIDL_EXPECTED_WORLD": "2",
        "HIDL_METRICS": str(tmp_path / "metrics.json"),
        "HIDL_CHECKS_MPI": "1",
    }

    def run(text: str, *launcher: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = [*launcher, str(programs / "python"), "-c", text]
        return subprocess.run(words, env={**environment, **more}, capture_output=True, text=True, check=False)

    late = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; MPI.Init(); print('trained')"
    for text in ("from mpi4py import MPI; print('trained')", late):
        alone = run(text)
        assert (alone.returncode, alone.stdout) == (86, ""), alone.stderr
        (tmp_path / ".wrong-world").unlink()
        assert "mpi4py: its world has 1 process(es), but 2 were launched" in alone.stderr
    assert run(late, HIDL_EXPECTED_WORLD="1").stdout == "trained\n"
    environment.pop("HIDL_CHECKS_MPI")
    assert run(late).stdout == "trained\n"

    own = (
        "import os, subprocess; os.environ['HIDL_RANK'] = os.environ['PMI_RANK']; from mpi4py import MPI; "
        "subprocess.run(['sh', '-c', 'echo ${HIDL_CHECKS_MPI-None}'])"
    )
    both = run(own, str(programs / "mpiexec"), "-n", "2", HIDL_CHECKS_MPI="1")
    assert (both.returncode, both.stdout) == (0, "None\n" * 2), both.stderr


FRAMEWORKS = {
    "jax": "import jax; jax.distributed.initialize(); found = jax.process_index(), jax.process_count()",
    "accelerate": """
import accelerate
one = accelerate.Accelerator(cpu=True)
found = one.process_index, one.num_processes""",
    "lightning": """
import os, lightning
one = lightning.Trainer(accelerator="cpu", devices=2, num_nodes=2, strategy="ddp", logger=False)
found = one.global_rank, one.world_size""",
}


@pytest.mark.parametrize("name", [deep(name) for name in FRAMEWORKS])
@pytest.mark.parametrize(("launcher", "stack"), [("srun", "mpi"), ("mpiexec", "mpi"), ("mpirun", "openmpi")])
def test_a_framework_finds_one_world_under_each_launcher(
    on_cluster: Callable[..., Hidl], here: Path, launcher: str, stack: str, name: str
) -> None:
    hidl = on_cluster(stack)
    packages = ["lightning==2.6.6", "accelerate==1.15.0", "jax", "torch==2.13.0+cpu"]
    place = Path(hidl.environment["XDG_DATA_HOME"]).parent / "frameworks"
    if not (place / "bin" / "jax-ready").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(place)], check=True)
        install = [uv, "pip", "install", "-q", "--python", str(place), "--find-links", "/opt/wheels", *packages]
        if subprocess.run(install, check=False, timeout=patience(900)).returncode:
            pytest.skip(f"{', '.join(packages)} do not install")
        (place / "bin" / "jax-ready").touch()
    text = f"{FRAMEWORKS[name]}\nprint('rank %d of %d' % found + chr(10), end='', flush=True)\n"
    (here / "finds.py").write_text(text)
    options = ["--site", "test-cluster", "--stack", stack, "--env", str(place), "--launcher", launcher]
    options += ["--nodes", "2", "--ranks-per-node", "2", "--no-mpi", "--json"]
    done = hidl("run", *options, "--", "python", "finds.py")
    assert done.returncode == 0, done.stderr
    printed = (hidl.runs / json.loads(done.stdout)["run"] / "stdout.log").read_text()
    assert sorted(re.findall(r"rank \d of \d", printed)) == [f"rank {rank} of 4" for rank in range(4)]


#: Classes as Lightning defines them: strategies, of which some have a world of their own, and the trainer.
TRAINER = """
class Strategy:
    launcher = None
class ParallelStrategy(Strategy):
    world_size = property(lambda self: 4)
class DDPStrategy(ParallelStrategy):
    pass
class SpawnStrategy(DDPStrategy):
    launcher = object()
class OwnStrategy(ParallelStrategy):
    world_size = property(lambda self: 4)
class SingleDeviceStrategy(Strategy):
    def __init__(self):
        self.world_size = 1
class Trainer:
    global_rank = 0
    def __init__(self, strategy, nodes=1, devices=1):
        self.strategy, self.num_nodes, self.num_devices = strategy(), nodes, devices
    def fit(self):
        print("trained")
    validate = test = predict = fit
"""
HOROVOD = "class HorovodBasics:\n    def init(self): pass\n    def size(self): return 4\n    def rank(self): return 0\n"
JOIN = "import horovod.common.basics as hvd; hvd.HorovodBasics().init()"


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``train("Trainer(DDPStrategy)")``: a program on the first of four ranks, with stand-ins of the frameworks."""
    modules = {
        "lightning/pytorch/trainer/trainer": TRAINER,
        "torch/distributed/__init__": "def is_available():\n    return False\n",
        "horovod/common/basics": HOROVOD,
    }
    for name, text in modules.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(parents=True)
        for place in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / place / "__init__.py").touch()
        file.write_text(text)

    def train(trainer: str, method: str = "fit", before: str = "") -> subprocess.CompletedProcess[str]:
        check = Path(__file__).parents[2] / "hidl_workloads" / "world_check"
        (tmp_path / "metrics").mkdir(exist_ok=True)
        (tmp_path / "metrics" / ".wrong-world").unlink(missing_ok=True)
        environment = {
            "PYTHONPATH": f"{check}:{tmp_path}",
            "HIDL_RANK": "0",
            "HIDL_EXPECTED_WORLD": "4",
            "HIDL_METRICS": str(tmp_path / "metrics" / "metrics.json"),
        }
        text = (
            "import os; os.environ['HIDL_RANK_PROCESS'] = str(os.getpid()); import torch.distributed; "
            f"{before or 'pass'}\nfrom lightning.pytorch.trainer.trainer import *; {trainer}.{method}()"
        )
        words = [sys.executable, "-c", text]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    return train


@pytest.mark.parametrize("method", ["fit", "validate", "test", "predict"])
def test_a_trainer_that_counts_fewer_ranks_is_refused_before_the_training(
    train: Callable[..., subprocess.CompletedProcess[str]], method: str
) -> None:
    """With the tasks of the launcher as its world, it would wait for ranks that it did not count."""
    done = train("Trainer(DDPStrategy, nodes=2)", method)
    assert (done.returncode, done.stdout) == (86, "")
    assert "Lightning: its world has 2 process(es), but 4 were launched" in done.stderr
    (fix,) = re.findall(r"next: (Trainer\(.*\));", done.stderr)
    variables = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    given = eval(fix, {"Trainer": dict, "os": SimpleNamespace(environ=variables)})
    assert (given["devices"], given["num_nodes"]) == (2, 2)
    assert train("Trainer(SingleDeviceStrategy)", method).returncode == 86


@pytest.mark.parametrize(
    ("trainer", "before"),
    [
        ("Trainer(DDPStrategy, nodes=2, devices=2)", ""),
        ("Trainer(OwnStrategy)", ""),
        ("Trainer(SpawnStrategy, nodes=2, devices=4)", ""),
        ("Trainer(SingleDeviceStrategy)", JOIN),
    ],
)
def test_a_trainer_in_the_launched_world_trains(
    train: Callable[..., subprocess.CompletedProcess[str]], trainer: str, before: str
) -> None:
    """It counts all ranks, has a world of its own, starts further processes, or is in a world of Horovod."""
    done = train(trainer, before=before)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


TENSORFLOW = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(f"replicas {strategy.num_replicas_in_sync}" + chr(10), end="", flush=True)
"""


@pytest.mark.deep
def test_tensorflow_finds_one_world(hidl_with: Callable[..., Hidl], here: Path) -> None:
    hidl = hidl_with("tensorflow")
    (here / "finds.py").write_text(TENSORFLOW)
    options = ["--stack", "tensorflow", "--ranks-per-node", "2", "--no-mpi"]
    done = hidl("run", *options, "--", "python", "finds.py")
    assert done.returncode == 0, done.stderr
    (directory,) = hidl.runs.iterdir()
    assert (directory / "stdout.log").read_text().splitlines() == ["replicas 2"] * 2


@pytest.mark.real
def test_torchrun_starts_once_on_a_node_with_its_processes(hidl_with: Callable[..., Hidl], here: Path) -> None:
    hidl = hidl_with("pytorch")
    done = hidl("run", "--stack", "pytorch", "--ranks-per-node", "2", "--", "torchrun", "joined.py")
    assert done.returncode == 0, done.stderr
    (directory,) = hidl.runs.iterdir()
    assert sorted((directory / "stdout.log").read_text().splitlines()) == ["rank 0 of 2: 1", "rank 1 of 2: 1"]


@pytest.mark.parametrize("launcher", ["srun", deep("mpiexec")])
def test_torchruns_of_two_nodes_form_one_world(on_cluster: Callable[..., Hidl], here: Path, launcher: str) -> None:
    hidl = on_cluster("pytorch")
    options = ["--site", "test-cluster", "--stack", "pytorch", "--launcher", launcher, "--nodes", "2"]
    program = ["bash", "-c", "exec torchrun --nproc-per-node 2 joined.py"]
    done = hidl("run", *options, "--", *program)
    assert done.returncode == 0, done.stderr
    (directory,) = hidl.runs.iterdir()
    printed = sorted((directory / "stdout.log").read_text().splitlines())
    assert printed == [f"rank {rank} of 4: 6" for rank in range(4)]
