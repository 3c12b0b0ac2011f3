"""The module that a job calls between its rounds, on the files that a job leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hidl_workloads.enough import main


def job(directory: Path, efficiency: float, *, rounds: int = 5, kind: str = "weak", copies: int = 0) -> Path:
    """A run's directory after ``rounds`` of 12 rounds of 1 and 4 ranks (or nodes: ``copies`` of one at once)."""
    steps = [
        {"size": size, "repetition": r, "copies": copies if size == 1 else 0} for r in range(1, 13) for size in (1, 4)
    ]
    plan = {"target": 0.8, "unit": "ranks", "steps": steps, "workload": {"scaling": {"kind": kind, "metric": "m"}}}
    write(directory / "plan.json", plan)
    write(directory / "status.json", {"started": time.time() - 100.0})
    random = np.random.default_rng(1)
    for number, step in enumerate(steps[: 2 * rounds], 1):
        place = directory / "steps" / str(number)
        rate = (1 if step["size"] == 1 else 4 * efficiency) * float(np.exp(0.01 * random.standard_normal()))
        value = rate if kind == "weak" else 1 / rate
        for each in [place / "copies" / str(i + 1) for i in range(step["copies"])] or [place]:
            write(each / "metrics.json", {"metrics": [{"name": "other", "value": 1}, {"name": "m", "value": value}]})
    return directory


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("copies", [0, 4])
@pytest.mark.parametrize("kind", ["weak", "strong"])
@pytest.mark.parametrize(("efficiency", "status"), [(0.95, 0), (0.6, 0), (0.8, 1)])
def test_a_study_ends_when_it_is_settled(
    tmp_path: Path, kind: str, copies: int, efficiency: float, status: int
) -> None:
    assert main([str(job(tmp_path, efficiency, kind=kind, copies=copies)), "5"]) == status


@pytest.mark.parametrize("copies", [0, 4])
def test_few_digits_settle_nothing_that_they_do_not_show(tmp_path: Path, copies: int) -> None:
    directory = job(tmp_path, 0.95, rounds=11, kind="strong", copies=copies)  # 1 s and 0.26 s
    assert main([str(directory), "11"]) == 0
    for number, file in enumerate(sorted(directory.glob("steps/**/metrics.json")), 1):
        document = json.loads(file.read_text())
        document["metrics"][1]["value"] = round(document["metrics"][1]["value"], 1) + (number == 1) * 0.1
        write(file, document)
    assert main([str(directory), "11"]) == 1


def test_ranks_that_do_no_work_do_not_count(tmp_path: Path) -> None:
    directory = job(tmp_path, 0.95)
    plan = json.loads((directory / "plan.json").read_text())
    for step in plan["steps"]:
        step["placement"] = {"ranks": step["size"] + 2}  # 1 and 4 workers, of 3 and 6 ranks
        step["size"] += 2
    write(directory / "plan.json", plan | {"workload": plan["workload"] | {"overhead_ranks": 2}})
    assert main([str(directory), "5"]) == 0
    assert "reaches the target" in json.loads((directory / "enough.json").read_text())["why"]


def test_it_says_why_and_leaves_how_many_rounds_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(job(tmp_path, 0.6)), "5"])
    document = json.loads((tmp_path / "enough.json").read_text())
    assert document["rounds"] == 5
    assert capsys.readouterr().out == f"# enough: {document['why']}\n"


def test_a_study_that_goes_on_leaves_nothing(tmp_path: Path) -> None:
    main([str(job(tmp_path, 0.8)), "5"])
    assert not (tmp_path / "enough.json").exists()


def test_no_round_is_begun_that_would_not_end_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(job(tmp_path, 0.8)), "5", "--seconds-left", "15"]) == 0
    assert "a round takes 20 s, and 15 s are left" in capsys.readouterr().out


@pytest.mark.parametrize("lost", ["plan.json", "steps/3/metrics.json"])
def test_what_cannot_be_reported_is_no_reason_to_stop(tmp_path: Path, lost: str) -> None:
    (job(tmp_path, 0.6) / lost).unlink()
    assert main([str(tmp_path), "5"]) == 2


def test_it_needs_nothing_of_hidl(tmp_path: Path) -> None:
    code = (
        "import sys; from hidl_workloads.enough import main; main(sys.argv[1:]); "
        "print([name for name in sys.modules if 'hidl_cli' in name])"
    )
    command = [sys.executable, "-c", code, str(job(tmp_path, 0.6)), "5"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines()[-1] == "[]"
