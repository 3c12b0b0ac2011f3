"""The energy of a run: from its program's documents to its metrics, and from Slurm's accounting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.documents import read_json, write_json
from hidl_cli.plan.launch_plan import plan_of
from hidl_cli.plan.options import RunRequest
from hidl_cli.record import Run
from hidl_cli.report.build import page_of
from hidl_cli.report.model import load
from hidl_cli.runs.conclude import conclude
from hidl_cli.runs.metrics import add_accounted_energy, describe_energy, energy_of
from hidl_cli.schedulers import slurm
from tests.report.example import Nights

MEASURED = {"covers": "package", "source": "powercap", "joules": 120.0, "nodes": 2, "items": 480, "item": "image"}
NOT = {"dram": "powercap: no dram counters", "node": "no pm_counters"}
#: Answers of Slurm 23.02 with acct_gather_energy/ipmi, about steps with and without a value.
CONFIG = "Configuration data as of 2026-11-03T10:00:00\nAcctGatherEnergyType    = acct_gather_energy/{}\n"
SACCT = ["7.0|5230", "7.1|0", "7.2|18446744073709551614", "7.3|"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An ended, unjudged run of one size, four times."""
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    nights = Nights(tmp_path / "state" / "hidl" / "runs", tmp_path / "config" / "hidl")
    made = nights.run(RunRequest("kmeans", repeat=4, ranks_per_node=2), 0, nights.clustering())
    for name in ("metrics", "verdict"):
        (made.directory / f"{name}.json").unlink()
    return made


def _add(run: Run, **keys: Any) -> None:
    for number in range(1, 5):
        file = run.metrics_file(number)
        write_json(
            file,
            {
                **read_json(file),
                **{key: each.format(number - 1) if key == "slurm_step" else each for key, each in keys.items()},
            },
        )


def _answers(path: Path, plugin: str) -> None:
    for name, text in (("scontrol", CONFIG.format(plugin)), ("sacct", "\n".join(SACCT))):
        (path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (path / name).chmod(0o755)


def test_the_energy_that_a_program_measured_is_kept_and_shown(run: Run) -> None:
    _add(run, energy={"measured": [MEASURED], "not_measured": NOT})
    conclude(run, plan_of(run), run.status())
    found = energy_of(run.directory)
    assert [each["energy"]["measured"] for each in found] == [[MEASURED]] * 4
    text = (
        "package 120 J by powercap, 2 nodes, 0.25 J for each image; not measured: "
        "dram (powercap: no dram counters), node (no pm_counters)"
    )
    assert describe_energy(found) == text
    page = page_of([load(run)], detect=lambda *_: [], generated="", hidl="", selection="")
    assert page.runs[0].energy == text


def test_a_program_that_measures_nothing_has_no_energy(run: Run) -> None:
    conclude(run, plan_of(run), run.status())
    assert energy_of(run.directory) == []
    assert describe_energy([]) == "not measured: the program does not measure it"


@pytest.mark.parametrize(
    "damaged", [7, {"measured": 7, "not_measured": {}}, {"measured": [{"joules": "x"}], "not_measured": {}}]
)
def test_what_a_program_wrote_wrongly_is_left_out(run: Run, damaged: Any) -> None:
    _add(run, energy=damaged)
    conclude(run, plan_of(run), run.status())
    assert energy_of(run.directory) == []


@pytest.mark.exact
def test_slurms_accounting_has_the_energy_of_whole_steps(run: Run, tmp_path: Path) -> None:
    _answers(tmp_path, "ipmi")
    steps = [{"slurm_step": f"7.{number}", "nodes": 2, "ranks": 2, "metrics": {}} for number in range(4)]
    add_accounted_energy(run, replace(plan_of(run), scheduler="slurm"), steps)
    assert [step["metrics"] for step in steps] == [
        {"step_energy": {"value": 5230, "unit": "J", "samples": [5230]}},
        *({},) * 3,
    ]
    assert describe_energy(steps[:1]) == "node 5230 J by Slurm's ipmi, the whole step, 2 nodes"
    assert describe_energy(steps[1:]) == "not measured: Slurm's step (sacct has no energy of the step)"


def test_without_a_plugin_slurm_has_no_energy(run: Run, tmp_path: Path) -> None:
    _answers(tmp_path, "none")
    assert slurm.energy_plugins(None) == []
    steps: list[dict[str, Any]] = [{"slurm_step": "7.0", "ranks": 2, "metrics": {}}]
    add_accounted_energy(run, replace(plan_of(run), scheduler="slurm"), steps)
    assert describe_energy(steps) == "not measured: Slurm's step (no acct_gather_energy plugin)"
    _answers(tmp_path, "rapl,acct_gather_energy/gpu")
    assert slurm.energy_plugins(None) == ["rapl", "gpu"]


def test_accounting_that_does_not_answer_is_no_error(run: Run, tmp_path: Path) -> None:
    _answers(tmp_path, "ipmi")
    (tmp_path / "sacct").write_text("#!/bin/sh\nexit 1\n")
    assert slurm.consumed_energy(["7.0"], None) is None
    steps: list[dict[str, Any]] = [{"slurm_step": "7.0", "ranks": 2, "metrics": {}}]
    add_accounted_energy(run, replace(plan_of(run), scheduler="slurm"), steps)
    assert describe_energy(steps) == "not measured: Slurm's step (sacct did not answer)"


def test_a_controller_that_does_not_answer_is_no_lack_of_a_plugin(run: Run, tmp_path: Path) -> None:
    _answers(tmp_path, "ipmi")
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    assert slurm.energy_plugins(None) is None
    steps: list[dict[str, Any]] = [{"slurm_step": "7.0", "ranks": 2, "metrics": {}}]
    add_accounted_energy(run, replace(plan_of(run), scheduler="slurm"), steps)
    assert describe_energy(steps) == "not measured: Slurm's step (scontrol did not answer)"
