"""``hidl run`` with secrets in parameters, tuning and environment: the program gets them, and nobody is shown them."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the mpi stack and the workload ``toy``, whose parameter ``note`` may hold anything."""
    hidl = hidl_with("mpi")
    parameters = {"note": {"type": "str", "default": ""}}
    metrics = {"rate": {"unit": "items/s", "better": "higher"}}
    scaling = {"metric": "rate", "kind": "weak", "target": 0.8}
    hidl.add_workload("toy", "toy.py", parameters=parameters, metrics=metrics, scaling=scaling)
    return hidl


def only_run(hidl: Hidl) -> Path:
    (run,) = hidl.runs.iterdir()
    return run


def test_a_secret_that_the_program_needs_is_shown_to_nobody(hidl: Hidl) -> None:
    note = "note=https://user:hunter2@host/a?sig=hunter2&b=1"
    for shown in (
        hidl("run", "toy", "--set", note, "--dry-run"),
        hidl("run", "toy", "--set", note, "--dry-run", "--json"),
    ):
        assert "https://***@host/a?sig=***&b=***" in shown.stdout
        assert "hunter2" not in shown.stdout + shown.stderr

    ran = hidl("run", "toy", "--set", note)
    run = only_run(hidl)
    assert "hunter2" in (run / "job.sh").read_text()
    assert run.stat().st_mode & 0o077 == 0
    hidl("report", "-o", str(run / "page.html"))
    shown = [
        ran,
        *(hidl(*words) for words in (("status", run.name), ("results", "show", run.name), ("results", "export"))),
    ]
    for each in shown:
        assert each.returncode == 0, each.stderr
        assert "hunter2" not in each.stdout + each.stderr
    assert "hunter2" not in (run / "page.html").read_text()
    hidl("capsule", run.name, "-o", str(run / "capsule"))
    with zipfile.ZipFile(run / "capsule") as archive:
        assert not [name for name in archive.namelist() if b"hunter2" in archive.read(name)]


def test_a_secret_that_is_varied_or_compared_is_shown_to_nobody(hidl: Hidl) -> None:
    notes = [f"https://user:hunter2-{name}@host/{name}" for name in ("a", "b")]
    varied = ("run", "toy", "--matrix", f"note={','.join(notes)}", "--repeat", "2")
    tuned = ("run", "toy", "--set", f"note={notes[0]}", "--tune", f"UCX_LOG_FILE={notes[1]}")
    shown = [hidl(*varied, "--dry-run"), hidl(*varied), hidl(*tuned, "--json"), hidl(*tuned, "--tune", "UCX_TLS=tcp")]
    matrix, old, new = sorted(run.name for run in hidl.runs.iterdir())
    for words in (
        ("status", "--json"),
        ("results", "show", matrix),
        ("results", "compare", old, new),
        ("results", "compare", old, new, "--json"),
        ("results", "list", "--json"),
        ("results", "history", "toy"),
        ("results", "history", "toy", "--json"),
        ("results", "export"),
    ):
        shown.append(hidl(*words))
    for each in shown:
        assert each.returncode in (0, 10, 11), (each.args, each.stderr)
        assert "hunter2" not in each.stdout + each.stderr, each.args
    assert "https://***@host/b" in shown[1].stdout


def test_no_secret_of_the_environment_lands_in_the_run(hidl: Hidl) -> None:
    assert hidl("run", "toy", MY_API_TOKEN="hunter2-hunter2").returncode == 0
    found = subprocess.run(["grep", "-r", "hunter2", only_run(hidl)], capture_output=True, check=False)
    assert found.returncode == 1
