"""The command line, as the page shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mpitraffic.build import build
from mpitraffic.commandline import main
from mpitraffic.errors import TrafficError

from tests.conftest import REPOSITORY
from tests.mpitraffic.conftest import LIBRARY

PAGE = (REPOSITORY / "libs" / "mpitraffic" / "README.md").read_text(encoding="utf-8")


@pytest.mark.real
def test_the_commands_of_the_page_record_its_program(stack_prefix: Callable[[str], Path], tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "phases.py").write_text(program)
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpitraffic").write_text(f'#!/bin/sh\nexec {sys.executable} -m mpitraffic "$@"\n')
    (tmp_path / "bin" / "mpitraffic").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{stack_prefix('mpi') / 'bin'}:{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(LIBRARY),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def run(command: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    blocks = [block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]
    first, built, tables, trace = blocks
    run("\n".join(first))
    run("rm -r profile\n" + "\n".join(built))
    run("\n".join(tables))
    run("rm -r profile\n" + program.splitlines()[0].partition(": ")[2].replace("profile)", "profile --events 100000)"))
    shown = run("mpitraffic show profile")
    assert re.search(r"^forward +6 ", shown, re.MULTILINE)
    assert re.search(r"^MPI_\w+ +\S.* average ", shown, re.MULTILINE)
    assert "events in trace.json" in run("\n".join(trace))
    assert len(list((tmp_path / "cache" / "mpitraffic").iterdir())) == 1


def test_the_environment_keeps_what_is_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "libother.so")
    recorder = tmp_path / "recorder.so"
    assert main(["env", str(tmp_path / "p"), "--recorder", str(recorder), "--barrier", "--megabytes", "2"]) == 0
    words = capsys.readouterr().out.split()
    assert words == [
        f"LD_PRELOAD={recorder}:libother.so",
        f"MPITRAFFIC_DIRECTORY={tmp_path / 'p'}",
        "MPITRAFFIC_MEGABYTES=2.0",
        "MPITRAFFIC_BARRIER=1",
    ]


def test_a_missing_compiler_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", str(tmp_path), "--mpicc", str(tmp_path / "mpicc")]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: MPI compiler '{tmp_path / 'mpicc'}' not found"
    assert hint.startswith("hint: ")


@pytest.mark.real
def test_zig_compiles_where_no_other_compiler_does(
    stack_prefix: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpicc = str(stack_prefix("mpi") / "bin" / "mpicc")
    monkeypatch.setenv("MPICH_CC", str(tmp_path / "absent"))
    monkeypatch.setattr("mpitraffic.build.find_spec", lambda name: None)
    with pytest.raises(TrafficError, match="recorder cannot be built") as failure:
        build(tmp_path / "recorder.so", mpicc)
    assert "ziglang" in failure.value.hint
    stand_in = tmp_path / "packages" / "ziglang" / "__main__.py"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("import os, sys; assert sys.argv[1] == 'cc'; os.execvp('gcc', ['gcc', *sys.argv[2:]])")
    monkeypatch.setattr("mpitraffic.build.find_spec", lambda name: name)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    assert build(tmp_path / "recorder.so", mpicc).read_bytes().startswith(b"\x7fELF")
    assert [each.name for each in tmp_path.iterdir() if each.name != "packages"] == ["recorder.so"]
