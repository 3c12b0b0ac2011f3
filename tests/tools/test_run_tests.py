"""What ``make test`` makes of failures: a few run once more, alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

PASSES = "def test_good(): pass\n"
FAILS = "def test_bad(): assert False\n"
#: Fails once.
ONCE = """
from pathlib import Path
def test_once():
    seen = Path(__file__).with_name("seen")
    before = seen.exists()
    seen.touch()
    assert before
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
    assert "once more" not in done.stdout


def test_one_that_fails_beside_others_alone_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, ONCE)
    assert done.returncode == 0
    assert done.stdout.endswith("PASSED ALONE (look for the reason before you trust them):\ntest_1.py::test_once\n")


def test_one_that_fails_again_fails_the_whole(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, ONCE, FAILS)
    assert done.returncode == 1
    assert "2 test(s) failed; once more, alone:" in done.stdout
    assert "PASSED ALONE" not in done.stdout


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, ONCE, ONCE.replace("seen", "a"), ONCE.replace("seen", "b"), ONCE.replace("seen", "c"))
    assert done.returncode == 1
    assert "once more" not in done.stdout


def test_a_file_that_cannot_be_imported_fails_the_whole(tmp_path: Path) -> None:
    assert run(tmp_path, PASSES, "import nothing_like_it\n").returncode == 1
