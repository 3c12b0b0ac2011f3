"""What ``make test`` makes of failures: a few run again, alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PASSES = "def test_good(): pass\n"
FAILS = "def test_bad(): assert False\n"
MANY_FAIL = "import pytest\n@pytest.mark.parametrize('number', range(16))\ndef test_bad(number): assert False\n"
#: Fails ``{times}`` times.
FAILS_FIRST = """
from pathlib import Path
def test_at_last():
    with Path(__file__).with_suffix(".seen").open("a+") as seen:
        seen.write("x")
        seen.seek(0)
        assert len(seen.read()) > {times}
"""


def run(directory: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """``tools/run_tests`` on these files, with this pytest."""
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -n 2 -q\n")
    for number, text in enumerate(files):
        (directory / f"test_{number}.py").write_text(text)
    program = str(Path(sys.executable).parent / "pytest")
    words = [str(REPOSITORY / "tools" / "run_tests"), program]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)


def test_all_that_pass_run_once(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES)
    assert done.returncode == 0
    assert "again" not in done.stdout


@pytest.mark.parametrize("times", [1, 2])
def test_one_that_fails_beside_others_and_passes_alone_is_named(tmp_path: Path, times: int) -> None:
    done = run(tmp_path, PASSES, FAILS_FIRST.format(times=times))
    assert done.returncode == 0
    assert f"alone ({times} of 2)" in done.stdout
    assert "FLAKY" in done.stdout
    assert done.stdout.endswith(":\ntest_1.py::test_at_last\n")


def test_one_that_always_fails_fails_the_whole(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, FAILS_FIRST.format(times=1), FAILS)
    assert done.returncode == 1
    assert "2 test(s) failed; again, alone (1 of 2):" in done.stdout
    assert "1 test(s) failed; again, alone (2 of 2):" in done.stdout
    assert "FLAKY" not in done.stdout


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, MANY_FAIL)
    assert done.returncode == 1
    assert "again" not in done.stdout


def test_a_file_that_cannot_be_imported_fails_the_whole(tmp_path: Path) -> None:
    assert run(tmp_path, PASSES, "import nothing_like_it\n").returncode not in (0, 1)
