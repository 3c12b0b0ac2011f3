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


@pytest.fixture
def trained(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl, with a run that was killed once."""
    hidl = hidl_with("mpi")
    completed = hidl("run", *WORDS, *PROGRAM)
    assert completed.returncode == 0, completed.stderr
    return hidl


def measured(hidl: Hidl, **values: float | None) -> dict[str, float]:
    """Change metrics of the run, and return all metrics of several jobs."""
    (run,) = hidl.runs.iterdir()
    document = json.loads((run / "metrics.json").read_text())
    metrics = document["steps"][0]["metrics"]
    for name, value in values.items():
        if value is None:
            del metrics[name]
        else:
            metrics[name] |= {"value": value, "samples": [value]}
    (run / "metrics.json").write_text(json.dumps(document))
    return {name: metric["value"] for name, metric in metrics.items()}


def interval(hidl: Hidl, *words: str, program: tuple[str, ...] = PROGRAM) -> dict[str, Any]:
    completed = hidl("run", *WORDS, *words, "--estimate", "--json", *program)
    assert completed.returncode == 0, completed.stderr
    found: dict[str, Any] = json.loads(completed.stdout)["checkpoint_interval"]
    return found


def test_it_follows_from_the_last_run_with_the_same_program(trained: Hidl) -> None:
    metrics = measured(trained)
    found = interval(trained)
    assert found["checkpoint_seconds"] == metrics["checkpoint_time"]
    assert found["time_between_failures"] == metrics["time_between_failures"]
    assert found["seconds"] == 10
    assert found["reason"].endswith("(the same run), limited to 10 to 3600 s")

    metrics = measured(trained, checkpoint_time=5.0, time_between_failures=10000.0)
    found = interval(trained)
    assert found["seconds"] == round(optimal_interval(5, 10000)) == 313
    shown = trained("run", *WORDS, "--estimate", *PROGRAM).stdout
    (run,) = trained.runs.iterdir()
    assert (
        f"checkpoint interval: 313 s, from 5 s for a checkpoint (run {run.name}) and 2.78 h between failures of a job"
        in shown
    )
    script = trained("run", *WORDS, "--dry-run", *PROGRAM).stdout
    assert f"export {INTERVAL}=313\n" in script
    assert INTERVAL not in trained("run", "--stack", "mpi", "--dry-run", *PROGRAM).stdout

    other = interval(trained, program=(*PROGRAM[:-1], "25=kill"))
    assert (other["seconds"], other["reason"]) == (
        None,
        "because no earlier run with these parameters measured its checkpoints",
    )
    measured(trained, time_between_failures=None)
    found = interval(trained)
    assert (found["seconds"], found["checkpoint_seconds"]) == (None, 5)
    assert "the failure rate is unknown: run " in found["reason"]


def test_the_sites_failure_rate_takes_precedence(trained: Hidl) -> None:
    measured(trained, checkpoint_time=5.0, time_between_failures=10000.0)
    site = trained.config / "sites" / "local.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(
        "name: local\nextends: local\ntitle: unreliable\nnode_types: {host: {detect: true, mtbf_hours: 20}}\n"
    )
    found = interval(trained)
    assert (found["time_between_failures"], found["seconds"]) == (72000, round(optimal_interval(5, 72000)))
    assert "20 h between failures of a node (site's file), 1 node(s)" in found["reason"]


@pytest.mark.parametrize("where", ["option", "environment"])
def test_the_users_interval_is_kept(trained: Hidl, where: str) -> None:
    measured(trained, checkpoint_time=5.0, time_between_failures=10000.0)
    words = ("--env-var", f"{INTERVAL}=77") if where == "option" else ()
    hidl = trained if where == "option" else Hidl(trained.environment | {INTERVAL: "77"})
    found = interval(hidl, *words)
    assert (found["seconds"], found["reason"]) == (None, f"{INTERVAL}=77")
    assert f"{INTERVAL}=313" not in hidl("run", *WORDS, *words, "--dry-run", *PROGRAM).stdout


def test_a_run_saves_at_this_interval(trained: Hidl, tmp_path: Path) -> None:
    """The second run gets 10 s from the first, of 1.5 s: it saves when it ends, and after 10 s."""
    measured(trained)
    program = ("--", "python", str(STEPS), "30", "0.5", "20=kill")
    (first,) = trained.runs.iterdir()
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
