"""Runs under what people and centres export: the result is the same as without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl

pytestmark = pytest.mark.real

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get('KEPT')]))"
#: Options of bash that are exported this way hold from the first line of every script.
SHELL_OPTIONS = "noclobber:noglob:keyword:posix:xtrace:allexport"
BASH_OPTIONS = "nullglob:failglob:nocasematch:dotglob:xpg_echo:lastpipe"
FUNCTION = "() {  echo hijacked; return 1; }"
COMMANDS = ("cd", "echo", "head", "mv", "rm", "date", "printf", "wait")
HOSTILE = {
    "paths of cd": {"CDPATH": ".:/tmp:/"},
    "options of bash": {"SHELLOPTS": SHELL_OPTIONS, "BASHOPTS": BASH_OPTIONS},
    "options of bash that execute nothing": {"SHELLOPTS": "noexec:onecmd", "BASHOPTS": "restricted_shell"},
    "options of POSIX": {"POSIXLY_CORRECT": "1", "ENV": "/no/such/file"},
    "words": {"IFS": "/:", "GLOBIGNORE": "*", "FUNCNEST": "1", "TMOUT": "1"},
    "functions": {
        f"BASH_FUNC_{name}%%": FUNCTION for name in ("cd", "echo", "head", "mv", "rm", "date", "printf", "wait")
    },
    "locale": {"LC_ALL": "et_EE.UTF-8", "LANG": "tr_TR.UTF-8", "LC_NUMERIC": "de_DE.UTF-8"},
    "names": dict.fromkeys(("step", "started", "child", "job", "directory", "hosts", "status", "forwarded"), "a"),
    "tools": {
        "GREP_OPTIONS": "-v",
        "GREP_COLOR": "1",
        "TIME_STYLE": "x",
        "TAR_OPTIONS": "-z",
        "LINES": "1",
        "COLUMNS": "1",
    },
}
HOSTILE["all"] = {name: value for each in HOSTILE.values() for name, value in each.items()}


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the mpi stack."""
    return hidl_with("mpi")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "my project"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "show.py").write_text(SHOW)
    return place


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_exported_changes_no_run(hidl: Hidl, here: Path, kind: str) -> None:
    """The program is a bash script of the user's, whose own shell has the options that people mean it to have."""
    exported = hidl.environment | HOSTILE[kind] | {"KEPT": "as it was"}
    program = "set -- 'a b' *; python3 show.py \"$@\"; echo ${SHELLOPTS//[!:]/} > /dev/null; false; exit 0"
    done = Hidl(exported)("run", "--no-mpi", "--", "bash", "-c", program)
    assert done.returncode == 0, done.stderr
    (run,) = hidl.runs.iterdir()
    assert json.loads((run / "status.json").read_text())["state"] == "COMPLETED"
    assert json.loads((run / "stdout.log").read_text().splitlines()[-1])[1:] == [str(here), "as it was"]


def test_cdpath_leads_no_script_into_another_directory(hidl: Hidl, here: Path, tmp_path: Path) -> None:
    """``bash RUN/job.sh`` from the directory of the runs once deleted the results of a run of the same name."""
    assert hidl("run", "--no-mpi", "--", sys.executable, "show.py").returncode == 0
    (run,) = hidl.runs.iterdir()
    for place in ("copies", "precious"):
        (tmp_path / place).mkdir()
        shutil.copytree(run, tmp_path / place / "r")
    before = {file: file.read_bytes() for file in (tmp_path / "precious").rglob("*") if file.is_file()}
    done = subprocess.run(
        ["bash", "r/job.sh"],
        cwd=tmp_path / "copies",
        env=os.environ | hidl.environment | {"CDPATH": str(tmp_path / "precious")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {file: file.read_bytes() for file in (tmp_path / "precious").rglob("*") if file.is_file()} == before
    assert json.loads((tmp_path / "copies" / "r" / "status.json").read_text())["state"] == "COMPLETED"


def test_a_machine_without_the_program_hostname_runs_jobs(hidl: Hidl, here: Path, tmp_path: Path) -> None:
    """Slim images have none."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for place in reversed(os.environ["PATH"].split(":")):
        for program in Path(place).glob("*"):
            if program.name != "hostname":
                (programs / program.name).unlink(missing_ok=True)
                (programs / program.name).symlink_to(program)
    done = Hidl(hidl.environment | {"PATH": str(programs)})("run", "--no-mpi", "--", sys.executable, "show.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("place", ["/no/such/directory", "relative"])
def test_a_directory_of_another_host_for_temporary_files_is_replaced(hidl: Hidl, here: Path, place: str) -> None:
    """Each run with ``--metric`` once failed without a cause, as job.sh keeps the output with a named pipe there."""
    (here / "relative").mkdir()
    (here / "print.py").write_text("import os; print('total', 7, os.environ['TMPDIR'])")
    hostile = Hidl(hidl.environment | {"TMPDIR": place})
    done = hostile("run", "--no-mpi", "--metric", r"total=total (\d+)", "--", sys.executable, "print.py")
    assert done.returncode == 0, done.stderr
    (run,) = hidl.runs.iterdir()
    assert (run / "stdout.log").read_text() == "total 7 /tmp\n"
    assert f"TMPDIR {place} is not a writable directory" in (run / "stderr.log").read_text()
