"""``hidl doctor --log``: the causes in any log, in text and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.commands.app import command_line
from tests.conftest import REPOSITORY

LOGS = REPOSITORY / "tests" / "outside"


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        command_line()(["doctor", *arguments])
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return (code or 0, *capsys.readouterr())


def test_causes_are_listed_the_likeliest_first(capsys: pytest.CaptureFixture[str]) -> None:
    log = LOGS / "log-slurm-cpu-binding-outside-the-step.txt"
    code, out, err = doctor(capsys, "--log", str(log))
    assert (code, out.splitlines()[0]) == (4, "error HD290 The CPU binding does not fit the step")
    assert "  seen: line 1: srun: error: CPU binding outside of job step allocation" in out
    assert "--cpu-bind=none" in out
    assert err.strip().endswith("errors")


def test_json_has_each_cause_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = LOGS / "log-libmpi-not-on-the-other-nodes.txt"
    code, out, _ = doctor(capsys, "--log", str(log), "--json")
    document: dict[str, Any] = json.loads(out)
    assert (code, document["schema"], document["log"]) == (4, "hidl.doctor-log/1", str(log))
    assert [cause["rule"] for cause in document["causes"]] == ["HD304", "HD267"]
    first = document["causes"][0]
    assert first.keys() == {"rule", "severity", "title", "why", "fix", "evidence"}
    assert first["evidence"]["line"] == 1
    assert "libmpi.so.40" in first["evidence"]["text"]


@pytest.mark.parametrize("name", ["log-good-component-ignored.txt", "log-good-nccl-no-plugin.txt"])
def test_a_good_log_has_no_cause(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = doctor(capsys, "--log", str(LOGS / name))
    assert (code, out) == (0, "")
    assert "no known error found" in err


def test_a_warning_is_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("distributed.worker - WARNING - Unmanaged memory use is high.\n")
    code, out, _ = doctor(capsys, "--log", str(tmp_path / "log"))
    assert (code, out.split(maxsplit=2)[:2]) == (0, ["warning", "HD223"])


def test_a_log_can_come_from_standard_input() -> None:
    command = ["-m", "hidl_cli", "doctor", "--log", "-", "--json"]
    done = subprocess.run(
        [sys.executable, *command],
        input="epoch 1\nNo space left on device\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert json.loads(done.stdout)["causes"][0]["evidence"] == {"line": 2, "text": "No space left on device"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--log", "nowhere.log"), "cannot read nowhere.log: No such file or directory"),
        (("--log", "."), "cannot read .: Is a directory"),
        (("--log", "x", "--nodes", "2", "--deep"), "cannot be combined with --nodes, --deep: it only reads a log"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    code, _, err = doctor(capsys, *arguments)
    assert code == 2
    assert told in err
