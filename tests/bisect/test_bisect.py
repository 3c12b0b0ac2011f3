"""``hidl bisect`` on real runs of this machine: the change that slows a program is named."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import LivingCluster
from tests.conftest import REPOSITORY, Hidl
from tests.waiting import until

EAGER, VCIS = "MPIR_CVAR_CH3_EAGER_MAX_MSG_SIZE", "MPIR_CVAR_CH4_NUM_VCIS"
#: Its rate is a tenth lower where the variable is set, and else what the file beside it says, within 0.5 %.
PROGRAM = f"""
import os, pathlib, random, sys
speed = float(pathlib.Path(__file__).with_name("speed").read_text())
if os.environ.get("{EAGER}") == "65536":
    speed *= 0.9
if os.environ.get("RANK", "0") == "0":
    print(f"rate: {{speed * random.uniform(0.995, 1.005)}} op/s")
"""


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "speed").write_text("100")
    hidl = hidl_with("mpi")
    add_workload(hidl, tmp_path)
    return hidl


def add_workload(hidl: Hidl, directory: Path, arguments: Sequence[str] = (), **parameters: Any) -> None:
    program = {
        "command": ["python", str(directory / "program.py")],
        "arguments": list(arguments),
        "directory": str(directory),
        "mpi": False,
        "patterns": [{"pattern": "rate: (?P<rate>[0-9.]+)"}],
    }
    parameters = {"batch": {"type": "int", "default": 8}, **parameters}
    metrics = {"rate": {"unit": "op/s", "better": "higher"}}
    hidl.add_workload("paced", "toy.py", program=program, parameters=parameters, metrics=metrics)


def night(hidl: Hidl, *options: str) -> str:
    """The id of a run of five repetitions on two ranks."""
    return str(hidl.json("run", "paced", "--ranks-per-node", "2", "--repeat", "5", *options)["run"])


@pytest.fixture
def nights(hidl: Hidl) -> tuple[str, str]:
    """A good and a bad run, with three changes of which one matters."""
    good = night(hidl, "--tune", f"{VCIS}=1")
    return good, night(hidl, "--tune", f"{VCIS}=2", "--tune", f"{EAGER}=65536", "--set", "batch=16")


def only(directory: Path) -> Path:
    (found,) = directory.iterdir()
    return found


def bisects(hidl: Hidl) -> Path:
    return hidl.runs.parent / "bisects"


def test_the_change_that_matters_is_named(hidl: Hidl, nights: tuple[str, str]) -> None:
    found = hidl.json("bisect", *nights)
    assert [each["name"] for each in found["changes"]] == [VCIS, EAGER, "batch"]
    assert (found["outcome"], [each["name"] for each in found["guilty"]]) == ("changes", [EAGER])
    assert f"the change of {EAGER} from not set to 65536 explains the slowdown: " in found["answer"]
    assert found["confidence"] >= 0.95
    slowdown = found["slowdown"]
    assert slowdown["low"] < slowdown["value"] < slowdown["high"]
    assert 0.995 / 1.005 <= (1 + slowdown["value"]) * 0.9 <= 1.005 / 0.995  # the 95 % miss one time in twenty
    runs = [json.loads((run / "plan.json").read_text()) for run in Path(found["directory"], "runs").iterdir()]
    assert len(runs) == found["runs"] + 2
    assert len({(plan["environment"].get(EAGER), plan["environment"][VCIS]) for plan in runs}) > 2
    assert len([*hidl.runs.iterdir()]) == 2  # it is not among the user's runs


def test_a_plan_is_shown_and_nothing_is_touched(hidl: Hidl, nights: tuple[str, str]) -> None:
    completed = hidl("bisect", *nights, "--dry-run")
    assert completed.returncode == 0, completed.stderr
    assert "3 change(s) to try, most likely first; about " in completed.stdout
    assert f"{EAGER}: not set → 65536" in completed.stdout
    assert "parameter batch: 8 → 16" in completed.stdout
    assert not bisects(hidl).exists()
    assert [each["name"] for each in hidl.json("bisect", *nights, "--dry-run")["changes"]] == [VCIS, EAGER, "batch"]


@pytest.mark.deep
def test_interrupted_and_called_again_it_goes_on(hidl: Hidl, nights: tuple[str, str]) -> None:
    started = hidl.start("bisect", *nights, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: [*bisects(hidl).glob("*/journal.json")])
    started.send_signal(signal.SIGINT)
    assert started.wait() == 130
    bisect = only(bisects(hidl))
    status = json.loads((only(bisect / "jobs") / "status.json").read_text())
    assert status["state"] == "INTERRUPTED"
    before = json.loads((bisect / "journal.json").read_text())["entries"]
    completed = hidl("bisect", *nights)
    assert completed.returncode == 0, completed.stderr
    assert f"the change of {EAGER} from not set to 65536 explains the slowdown: " in completed.stdout
    after = json.loads((bisect / "journal.json").read_text())["entries"]
    assert after[: len(before)] == before
    assert {entry["session"] for entry in after} == {1, 2}


def test_it_stops_and_keeps_what_it_has_while_another_run_uses_the_cores(
    hidl: Hidl, nights: tuple[str, str], tmp_path: Path
) -> None:
    locks = [tmp_path / name for name in ("online", "possible")]  # as of another run of hidl
    hidl.environment["HIDL_CORES_LOCK"] = str(locks[0])
    for lock in locks:
        lock.touch()
    with locks[0].open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        completed = hidl("bisect", *nights)
    assert completed.returncode == 8, completed.stdout
    assert "another run used this machine's cores" in completed.stderr
    assert not [*bisects(hidl).glob("*/journal.json")]

    completed = hidl("bisect", *nights)
    assert f"the change of {EAGER} from not set to 65536 explains the slowdown: " in completed.stdout


@pytest.mark.deep
def test_killed_its_job_goes_on_and_is_followed_again(hidl: Hidl, nights: tuple[str, str]) -> None:
    started = hidl.start("bisect", *nights, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: [*bisects(hidl).glob("*/journal.json")])
    started.kill()
    started.wait()
    completed = hidl("bisect", *nights)
    assert completed.returncode == 0, completed.stderr
    assert f"the change of {EAGER} from not set to 65536 explains the slowdown: " in completed.stdout
    bisect = only(bisects(hidl))
    assert len([*(bisect / "jobs").iterdir()]) == 1
    assert {entry["session"] for entry in json.loads((bisect / "journal.json").read_text())["entries"]} == {1}


@pytest.mark.deep
def test_hidden_words_of_capsules_are_given_to_the_runs(hidl: Hidl, tmp_path: Path) -> None:
    secret = "hf_SECRET-value-1"
    (tmp_path / "program.py").write_text(f"{PROGRAM}\nassert sys.argv[1:] == ['--token={secret}'], sys.argv\n")
    add_workload(hidl, tmp_path, arguments=["--token={token}"], token={"type": "str", "default": ""})
    given = ("--set", f"token={secret}")
    nights = night(hidl, *given), night(hidl, *given, "--tune", f"{EAGER}=65536", "--set", "batch=16")
    files = [str(tmp_path / f"{name}.capsule") for name in ("good", "bad")]
    for run, file in zip(nights, files, strict=True):
        hidl.json("capsule", run, "--output", file)
    refused = hidl("bisect", *files, "--yes")
    assert (refused.returncode, "--set TOKEN=VALUE" in refused.stderr) == (4, True)
    completed = hidl("bisect", *files, "--yes", "--json", "--set", f"TOKEN={secret}")
    assert secret not in completed.stdout + completed.stderr
    found = json.loads(completed.stdout)
    assert (found["outcome"], [each["name"] for each in found["guilty"]]) == ("changes", [EAGER])
    assert "redacted value TOKEN: not in the capsule → as given (in all runs)" in found["left_out"]
    assert only(bisects(hidl)).stat().st_mode & 0o077 == 0


@pytest.mark.deep
def test_capsules_do_as_well_and_ask_first(hidl: Hidl, nights: tuple[str, str], tmp_path: Path) -> None:
    files = [str(tmp_path / f"{name}.capsule") for name in ("good", "bad")]
    for run, file in zip(nights, files, strict=True):
        hidl.json("capsule", run, "--output", file)
    completed = hidl("bisect", *files)
    assert (
        completed.returncode,
        "a replay installs the capsule's packages and runs its program" in completed.stderr,
    ) == (
        2,
        True,
    )
    assert not bisects(hidl).exists()
    found = hidl.json("bisect", *files, "--yes")
    assert (found["outcome"], [each["name"] for each in found["guilty"]]) == ("changes", [EAGER])


@pytest.mark.deep
def test_a_slow_machine_is_told_from_a_change(hidl: Hidl, tmp_path: Path) -> None:
    good = night(hidl)
    (tmp_path / "speed").write_text("90")
    bad = night(hidl, "--set", "batch=16")
    completed = hidl("bisect", good, bad)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("the machine has changed: the good configuration is 1")
    (tmp_path / "speed").write_text("100")
    found = hidl.json("bisect", good, bad, "--fresh")
    assert (found["outcome"], found["guilty"]) == ("not reproducible", [])
    assert len([*bisects(hidl).iterdir()]) == 2  # the first is kept


@pytest.mark.deep
def test_without_any_change_the_configuration_is_held_against_its_record(hidl: Hidl, tmp_path: Path) -> None:
    good = night(hidl)
    (tmp_path / "speed").write_text("90")
    found = hidl.json("bisect", good, night(hidl))
    assert (found["outcome"], found["changes"]) == ("machine", [])


@pytest.mark.deep
def test_the_budget_ends_it_undecided(hidl: Hidl, nights: tuple[str, str]) -> None:
    found = hidl.json("bisect", *nights, "--budget", "3", status=11)
    assert (found["outcome"], found["runs"]) == ("undecided", 3)
    jobs = set(hidl.runs.parent.glob("bisects/*/jobs/*"))
    program = f"import hidl_cli.api as hidl; print(hidl.bisect(*{nights!r}, budget=3).outcome)"
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**hidl.environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "undecided\n"
    assert set(hidl.runs.parent.glob("bisects/*/jobs/*")) == jobs


def test_what_cannot_be_compared_is_refused(hidl: Hidl, nights: tuple[str, str]) -> None:
    good, bad = nights
    for arguments, status, said in (
        ((bad, good), 2, "the bad run was not worse: rate "),
        ((good, bad, "--metric", "bandwidth"), 2, "have no metric 'bandwidth'"),
        ((good, "never-ran"), 2, "run 'never-ran' not found"),
        ((good, bad, "--site", "frontera"), 2, "was on site local, not frontera"),
    ):
        completed = hidl("bisect", *arguments)
        assert (completed.returncode, said in completed.stderr) == (status, True), completed.stderr


def test_a_configuration_that_does_not_run_ends_it(hidl: Hidl, nights: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("raise SystemExit('no such module')")
    completed = hidl("bisect", *nights)
    assert completed.returncode == 8
    assert "configuration cannot run" in completed.stderr


@pytest.mark.deep
def test_python_does_what_the_command_line_does(hidl: Hidl, nights: tuple[str, str], tmp_path: Path) -> None:
    program = tmp_path / "bisects.py"
    program.write_text(
        "import hidl_cli.api as hidl\n"
        f"found = hidl.bisect(*{nights!r}, budget=100)\n"
        "print(found.outcome, found.guilty)\n"
    )
    environment = {**hidl.environment, "PYTHONPATH": str(REPOSITORY)}
    said = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True).stdout
    assert said == f"changes ('{EAGER}: not set → 65536',)\n"


@pytest.mark.deep
def test_on_a_cluster_all_runs_share_one_allocation(
    cluster: LivingCluster, on_cluster: Callable[..., Hidl], tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    shared = cluster.directory.parent / "paced"
    shared.mkdir(exist_ok=True)
    (shared / "program.py").write_text(PROGRAM)
    (shared / "speed").write_text("100")
    add_workload(hidl, shared)
    on_site: tuple[Any, ...] = ("--site", "test-cluster", "--nodes", "2")
    good = night(hidl, *on_site)
    bad = night(hidl, *on_site, "--tune", f"{EAGER}=65536", "--set", "batch=16")
    found = hidl.json("bisect", good, bad)
    assert (found["outcome"], [each["name"] for each in found["guilty"]]) == ("changes", [EAGER])
    statuses = [json.loads((run / "status.json").read_text()) for run in Path(found["directory"], "runs").iterdir()]
    job = json.loads((only(Path(found["directory"], "jobs")) / "job.json").read_text())
    assert {status["job"] for status in statuses} == {job["id"]}
    assert {len(status["hosts"]) for status in statuses} == {2}
