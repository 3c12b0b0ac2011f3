"""``hidl run --profile`` on real ranks: what is recorded, shown and exported, and what happens when something fails."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Hidl

pytestmark = pytest.mark.real

RATE = {
    "metrics": {"rate": {"unit": "items/s", "better": "higher"}},
    "scaling": {"metric": "rate", "kind": "weak", "target": 0.3},
}


@pytest.fixture(scope="session")
def recorders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which each recorder is built once."""
    return tmp_path_factory.mktemp("recorders")


@pytest.fixture
def phases(hidl_with: Callable[..., Hidl], recorders: Path) -> Callable[..., Hidl]:
    """``phases("mpi", "die")``: hidl with the workload ``phases``, whose program gets these arguments."""

    def make(stack: str, *arguments: str) -> Hidl:
        hidl = hidl_with(stack)
        hidl.environment["XDG_CACHE_HOME"] = str(recorders)
        command = ["python", "-m", "mpi4py", str(REPOSITORY / "tests" / "programs" / "phases.py"), *arguments]
        hidl.add_workload("phases", "phases.py", program={"command": command}, stacks=[{"stack": stack}], **RATE)
        return hidl

    return make


@pytest.mark.alone
@pytest.mark.parametrize("stack", ["mpi", "openmpi"])
def test_a_rank_that_is_slow_in_backward_is_named(phases: Callable[..., Hidl], stack: str, tmp_path: Path) -> None:
    hidl = phases(stack)
    done = hidl("run", "phases", "--no-check", "--profile", "--ranks-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert "rank 1 on" in done.stdout
    assert "is slow in backward" in done.stdout
    document = hidl.json("results", "profile")
    step = document["step"]
    # An allreduce of 8000 bytes on two ranks: each sends its half and the sum of the other.
    assert step["matrix"]["bytes"]["collective"][0][1] >= 11 * 8000
    assert step["phases"]["step"]["entries"] == step["phases"]["backward"]["entries"] == 20
    assert step["phases"]["warmup"]["entries"] == 2
    assert {"", "step", "backward"} <= {each["phase"] for each in step["slow_ranks"] if each["rank"] == 1}
    assert "phases.py" in step["command"]
    (shown,) = hidl.json("results", "show")["steps"]
    assert {"mpi_share", "compute_imbalance"} <= set(shown["metrics"])
    matrix = hidl("results", "profile", "--matrix")
    assert "Bytes sent (rows) and received (columns) by rank" in matrix.stdout
    table = tmp_path / "ranks.csv"
    assert hidl("results", "profile", "--export", "ranks", "-o", str(table)).returncode == 0
    assert [row["rank"] for row in csv.DictReader(table.open())] == ["0", "1"]
    trace = tmp_path / "trace.json"
    assert hidl("results", "profile", "--export", "trace", "-o", str(trace)).returncode == 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert any(name.startswith("MPI_Allreduce") for name in names)


@pytest.mark.alone
def test_a_study_divides_its_lost_efficiency(phases: Callable[..., Hidl]) -> None:
    hidl = phases("mpi")
    done = hidl("run", "phases", "--no-check", "--profile", "--scale", "ranks=1,2", "--repeat", "3")
    assert done.returncode in (0, 10, 11), done.stderr
    assert "imbalance: waiting for the slowest rank" in done.stdout
    (fall,) = hidl.json("results", "profile")["waterfalls"]
    losses = {each["cause"]: each["value"] for each in fall["losses"]}
    assert 1 - sum(losses.values()) == pytest.approx(fall["efficiency"])
    assert losses["imbalance"] == max(losses.values())
    assert losses["imbalance"] == pytest.approx(1 - fall["efficiency"], abs=0.1)
    page = hidl.runs.parent / "page.html"
    assert hidl("report", "-o", str(page)).returncode == 0


def test_a_killed_rank_leaves_what_it_had(phases: Callable[..., Hidl]) -> None:
    hidl = phases("mpi", "die")
    assert hidl("run", "phases", "--no-check", "--profile", "--ranks-per-node", "2").returncode == 8
    document = hidl.json("results", "profile")
    assert document["step"]["unfinished_ranks"] == [0, 1]
    assert document["step"]["by_rank"][1]["phases"]["backward"]["entries"] == 1


def test_damaged_and_lost_files_do_not_fail_the_run(phases: Callable[..., Hidl]) -> None:
    hidl = phases("mpi")
    done = hidl("run", "phases", "--no-check", "--profile", "--ranks-per-node", "2", "--no-wait", "--json")
    (run,) = hidl.runs.iterdir()
    assert hidl("resume", run.name).returncode == 0, done.stderr
    (run / "profile.json").unlink()
    (run / "verdict.json").unlink()
    for file in (run / "steps" / "1" / "profile").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    judged = hidl("resume", run.name)
    assert judged.returncode == 0, judged.stderr
    shown = hidl("results", "profile")
    assert shown.returncode == 2
    assert "has no profile: profile" in shown.stderr


def test_a_recorder_that_cannot_be_built_is_an_error_unless_it_may_be_missing(
    phases: Callable[..., Hidl], tmp_path: Path
) -> None:
    hidl = phases("mpi")
    options: dict[str, Any] = {"MPICH_CC": "/absent/cc", "XDG_CACHE_HOME": str(tmp_path / "empty")}
    arguments = ("run", "phases", "--no-check", "--ranks-per-node", "2")
    refused = hidl(*arguments, "--profile", **options)
    assert refused.returncode == 4
    assert "cannot record the run: recorder cannot be built" in refused.stderr
    assert not hidl.runs.exists() or not list(hidl.runs.iterdir())
    done = hidl(*arguments, "--profile=if-possible", **options)
    assert done.returncode == 0, done.stderr
    assert "the run is not recorded: " in done.stderr
    assert "recorder cannot be built" in hidl("results", "profile").stderr


def test_a_run_without_the_option_has_no_profile(phases: Callable[..., Hidl]) -> None:
    hidl = phases("mpi")
    assert hidl("run", "phases", "--no-check").returncode == 0
    shown = hidl("results", "profile")
    assert shown.returncode == 2
    assert "was not recorded" in shown.stderr


def test_the_program_of_the_page(phases: Callable[..., Hidl], tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "profile-a-run.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "program.py").write_text(program)
    hidl = phases("mpi")
    words = ("run", "--no-check", "--profile", "--stack", "mpi", "--ranks-per-node", "2", "--", "python")
    done = hidl(*words, str(tmp_path / "program.py"), PYTHONPATH=str(REPOSITORY))
    assert done.returncode == 0, done.stderr
    step = hidl.json("results", "profile")["step"]
    assert {name: each["entries"] for name, each in step["phases"].items()} == {
        "warmup": 2,
        "step": 20,
        "forward": 20,
        "average": 20,
    }
