"""The interval between two checkpoints, from earlier runs and the site's file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.runs.checkpoint_interval import INTERVAL, optimal_interval
from tests.conftest import REPOSITORY, Hidl

STEPS = REPOSITORY / "tests" / "programs" / "steps.py"
HOUR = 3600.0


@pytest.mark.parametrize(("between", "minutes"), [(24 * HOUR, 117.0), (6 * HOUR, 57.0), (HOUR / 4, 9.1)])
def test_the_interval_is_that_of_the_figures_of_the_paper(between: float, minutes: float) -> None:
    """Daly (2006), figures 3 to 5, with 5 minutes for a checkpoint."""
    digits = 1 if minutes < 10 else 0
    assert round(optimal_interval(5 * 60, between) / 60, digits) == minutes


def run_time(interval: float, cost: float, between: float) -> float:
    """Return the expected time of a unit of work by Daly's complete model, without the time of a restart."""
    return between / interval * math.expm1((interval + cost) / between)


@pytest.mark.parametrize("cost", [0.01, 1.0, 30.0, 600.0, 1700.0])
def test_no_other_interval_is_much_better(cost: float) -> None:
    between = HOUR
    best = min(run_time(10 ** (exponent / 200), cost, between) for exponent in range(-200, 1000))
    assert run_time(optimal_interval(cost, between), cost, between) < best * 1.001


def test_a_checkpoint_that_takes_longer_than_two_failures() -> None:
    assert optimal_interval(2000, 1000) == optimal_interval(9000, 1000) == 1000
    assert optimal_interval(1999, 1000) == pytest.approx(1000, rel=0.15)


PROGRAM = ("--", "python", str(STEPS), "30", "0.05", "20=kill")
WORDS = ("--stack", "mpi", "--until-done")
UNKNOWN = "because no earlier run with these parameters measured its checkpoints"


@pytest.fixture
def trained(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl, with a run that was killed once."""
    hidl = hidl_with("mpi")
    completed = hidl("run", *WORDS, *PROGRAM)
    assert completed.returncode == 0, completed.stderr
    return hidl


def measured(run: Path, **changes: Any) -> None:
    """Change the metric ``checkpoint_time`` of a run."""
    document = json.loads((run / "metrics.json").read_text())
    document["steps"][0]["metrics"]["checkpoint_time"] |= changes
    (run / "metrics.json").write_text(json.dumps(document))


def took(run: Path, seconds: float, *, failed: bool = True) -> None:
    """Change the time of all jobs of a run with two jobs, and whether the first one failed."""
    (first,) = map(json.loads, (run / "attempts.jsonl").read_text().splitlines())
    first["exit_status"] = 9 if failed else 75
    (run / "attempts.jsonl").write_text(json.dumps(first) + "\n")
    last = json.loads((run / "status.json").read_text())
    last["ended"] = last["started"] + seconds - (first["ended"] - first["started"])
    (run / "status.json").write_text(json.dumps(last))


def only(hidl: Hidl) -> Path:
    (run,) = hidl.runs.iterdir()
    return run


def interval(hidl: Hidl, *words: str, program: tuple[str, ...] = PROGRAM) -> dict[str, Any]:
    completed = hidl("run", *WORDS, *words, "--estimate", "--json", *program)
    assert completed.returncode == 0, completed.stderr
    found: dict[str, Any] = json.loads(completed.stdout)["checkpoint_interval"]
    return found


def test_it_follows_from_the_last_run_with_the_same_program(trained: Hidl) -> None:
    run = only(trained)
    metrics = json.loads((run / "metrics.json").read_text())["steps"][0]["metrics"]
    found = interval(trained)
    assert found["checkpoint_time"] == metrics["checkpoint_time"]["value"]
    assert found["time_between_failures"] == pytest.approx(metrics["time_between_failures"]["value"])
    assert found["seconds"] == 10
    assert found["reason"].endswith("(1 in 1 earlier run(s)), limited to 10 to 3600 s")

    measured(run, value=5.0)
    took(run, 10000.0)
    found = interval(trained)
    assert found["seconds"] == round(optimal_interval(5, 10000)) == 313
    shown = trained("run", *WORDS, "--estimate", *PROGRAM).stdout
    assert (
        f"checkpoint interval: 313 s, from 5 s for a checkpoint (run {run.name}) and 2.78 h between failures of a job "
        "(1 in 1 earlier run(s))\n"
    ) in shown
    script = trained("run", *WORDS, "--dry-run", *PROGRAM).stdout
    assert f"export {INTERVAL}=313\n" in script
    assert INTERVAL not in trained("run", "--stack", "mpi", "--dry-run", *PROGRAM).stdout

    other = interval(trained, program=(*PROGRAM[:-1], "25=kill"))
    assert (other["seconds"], other["reason"]) == (None, UNKNOWN)
    took(run, 10000.0, failed=False)
    found = interval(trained)
    assert (found["seconds"], found["checkpoint_time"]) == (None, 5)
    assert "the failure rate is unknown: no job of 1 earlier run(s) failed" in found["reason"]


def test_runs_without_a_failure_count_for_the_failure_rate(trained: Hidl) -> None:
    """Those with one would suggest a failure in 10,000 s."""
    first = only(trained)
    measured(first, value=9.0)
    took(first, 10000.0)
    completed = trained("run", *WORDS, *PROGRAM)
    assert completed.returncode == 0, completed.stderr
    (second,) = set(trained.runs.iterdir()) - {first}
    measured(second, value=5.0)
    took(second, 30000.0, failed=False)
    found = interval(trained)
    assert found["time_between_failures"] == pytest.approx(40000)
    assert found["seconds"] == round(optimal_interval(5, 40000))
    assert f"(run {second.name})" in found["reason"]
    assert "(1 in 2 earlier run(s))" in found["reason"]


def test_a_run_with_damaged_files_is_skipped(trained: Hidl) -> None:
    run = only(trained)
    text = (run / "metrics.json").read_text()
    for changes in ({"value": "text"}, {"value": None}, {"value": 0}, {"value": -1}, {"unit": "min"}):
        measured(run, **changes)
        assert interval(trained)["reason"] == UNKNOWN
        (run / "metrics.json").write_text(text)
    (run / "attempts.jsonl").write_bytes(b"\xff{")
    (run / "status.json").write_text('{"started": "text"')
    assert "the failure rate is unknown" in interval(trained)["reason"]


def test_the_largest_interval_costs_little(trained: Hidl) -> None:
    for cost, hours, longest in ((1800.0, 100, None), (600.0, 100, 12000), (300.0, 24, 6000), (5.0, 1000, 3600)):
        measured(only(trained), value=cost)
        took(only(trained), hours * HOUR)
        found = interval(trained)
        best = optimal_interval(cost, hours * HOUR)
        assert found["seconds"] == (longest or round(best))
        assert run_time(found["seconds"], cost, hours * HOUR) < 1.01 * run_time(best, cost, hours * HOUR)
        assert (f"limited to 10 to {longest} s" in found["reason"]) is (longest is not None)


def test_the_sites_failure_rate_takes_precedence(trained: Hidl) -> None:
    measured(only(trained), value=5.0)
    site = trained.config / "sites" / "local.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(
        "name: local\nextends: local\ntitle: unreliable\nnode_types: {host: {detect: true, mtbf_hours: 20}}\n"
    )
    found = interval(trained)
    assert (found["time_between_failures"], found["seconds"]) == (72000, round(optimal_interval(5, 72000)))
    assert "20 h between failures of a node (site's file), 1 node(s)" in found["reason"]


@pytest.mark.parametrize("where", ["option", "environment"])
def test_the_users_interval_reaches_the_job(trained: Hidl, where: str) -> None:
    """A scheduler may drop the user's environment."""
    measured(only(trained), value=5.0)
    took(only(trained), 10000.0)

    def chosen(value: str) -> tuple[Hidl, tuple[str, ...]]:
        given = {INTERVAL: value} if where == "environment" else {}
        return Hidl(trained.environment | given), () if given else ("--env-var", f"{INTERVAL}={value}")

    hidl, words = chosen("77.5")
    found = interval(hidl, *words)
    assert (found["seconds"], found["reason"]) == (77.5, f"{INTERVAL}=77.5")
    plan = json.loads(hidl("run", *WORDS, *words, "--dry-run", "--json", *PROGRAM).stdout)
    assert f"export {INTERVAL}=77.5\n" in plan["script"]
    assert plan["plan"]["environment"][INTERVAL] == "77.5"
    for value in ("soon", "-1", "inf", "nan"):
        hidl, words = chosen(value)
        completed = hidl("run", *WORDS, *words, "--estimate", *PROGRAM)
        assert completed.returncode == 2
        assert f"error: invalid {INTERVAL} '{value}': must be a number of at least 0" in completed.stderr


def test_an_empty_variable_leaves_the_interval_to_the_program(trained: Hidl) -> None:
    measured(only(trained), value=5.0)
    took(only(trained), 10000.0)
    assert interval(trained, "--env-var", f"{INTERVAL}=")["seconds"] is None
    assert interval(Hidl(trained.environment | {INTERVAL: ""}))["seconds"] == 313


def test_a_run_saves_at_this_interval(trained: Hidl, tmp_path: Path) -> None:
    """The second run gets 10 s from the first, of 1.5 s: it saves when it ends, and after 10 s."""
    program = ("--", "python", str(STEPS), "30", "0.5", "20=kill")
    first = only(trained)
    plan = json.loads((first / "plan.json").read_text())
    assert INTERVAL not in plan["environment"]
    text = (first / "plan.json").read_text().replace('"0.05"', '"0.5"')
    (first / "plan.json").write_text(text)
    completed = trained("run", *WORDS, *program)
    assert completed.returncode == 0, completed.stderr
    assert "checkpoint interval: 10 s, from " in completed.stderr
    (second,) = set(trained.runs.iterdir()) - {first}
    begins = [line for line in (second / "stdout.log").read_text().splitlines() if line.startswith("begins")]
    assert begins[0] == "begins at 0"
    assert 15 <= int(begins[1].split()[-1]) <= 20
