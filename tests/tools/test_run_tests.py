"""What ``make test`` makes of failures: a few run again, alone; some are never excused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.tiers import MOST_ENTRIES, QUARANTINE, deep, faults, quarantined
from tools.run_tests import UNUSABLE, main

pytestmark = pytest.mark.real

#: Without Hypothesis' plug-in, whose imports would take half of each session.
SETTINGS = """
[pytest]
addopts = -n {workers} -q -p tests.tiers -p tests.evidence -p no:hypothesispytest
markers =
    pure
    real
    alone
    deep
    exact
timeout = 60
"""
PASSES = "def test_good(): pass\n"
FAILS = "import pytest\n@pytest.mark.real\ndef test_bad(): assert False\n"
MANY_FAIL = """
import pytest
@pytest.mark.real
@pytest.mark.parametrize("number", range(16))
def test_bad(number): assert False
"""
#: One fixture, sixteen tests: that is one cause.
SET_UP_ONCE = """
import pytest
from pathlib import Path
@pytest.fixture(scope="module")
def ready():
    seen = Path(__file__).with_suffix(".seen")
    ready = seen.exists()
    seen.touch()
    assert ready
@pytest.mark.real
@pytest.mark.parametrize("number", range(16))
def test_good(ready, number): pass
"""


def fails_first(times: int, how: str = "assert False", tier: str = "real") -> str:
    """A test that fails so many times, and passes then."""
    return f"""
import os, pytest
from pathlib import Path
@pytest.mark.{tier}
def test_at_last():
    with Path(__file__).with_suffix(".seen").open("a+") as seen:
        seen.write("x")
        seen.flush()
        seen.seek(0)
        if len(seen.read()) <= {times}:
            {how}
"""


COUNTEREXAMPLE = """
import os, pytest
from hypothesis import given, settings, strategies
@pytest.mark.real
@settings(database=None)
@given(strategies.integers())
def test_numbers(number): assert number < 5 or "PYTEST_XDIST_WORKER" not in os.environ
"""


def run(
    directory: Path, *files: str, words: tuple[str, ...] = (), workers: int = 0
) -> subprocess.CompletedProcess[str]:
    """The runner on these files."""
    (directory / "pytest.ini").write_text(SETTINGS.format(workers=workers))
    for number, text in enumerate(files):
        (directory / f"test_{number}.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tools.run_tests", *words]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def closing(done: subprocess.CompletedProcess[str]) -> str:
    """The closing line, without how long the tiers have taken."""
    line = done.stdout.splitlines()[-2]
    assert line.startswith("slowness ")
    return re.sub(r": \d+ s\b", ": ran", line)


def test_all_that_pass_run_once(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, fails_first(0))
    assert done.returncode == 0, done.stdout
    assert "again, alone" not in done.stdout
    assert " · 0 failed · 2 passed · 0 skipped · 0 FLAKY · pure: ran · " in closing(done)
    assert " 2 passed in " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("times", [deep(1), 2])
def test_one_that_fails_beside_others_and_passes_alone_is_named(tmp_path: Path, times: int) -> None:
    done = run(tmp_path, PASSES, fails_first(times), workers=2)
    assert done.returncode == 0, done.stdout
    assert f"alone ({times} of 2)" in done.stdout
    assert "FLAKY (passed alone; find out why): test_1.py::test_at_last - assert False\n" in done.stdout
    assert " · 0 failed · 2 passed · 0 skipped · 1 FLAKY · " in done.stdout
    assert {each.name for each in (tmp_path / ".tests").glob("*.xml")} >= {"real.xml", f"again-{times}.xml"}


def test_one_that_always_fails_fails_the_whole(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, fails_first(1), FAILS)
    assert done.returncode == 1
    assert "2 failed; again, alone (1 of 2):" in done.stdout
    assert "1 failed; again, alone (2 of 2):" in done.stdout
    assert "\nFAILED test_2.py::test_bad - assert False\n" in done.stdout
    assert "\nFLAKY (passed alone; find out why): test_1.py::test_at_last" in done.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (fails_first(1, tier="exact\n@pytest.mark.real"), "never excused, wrong numbers: assert False"),
        (fails_first(1, "os.abort()"), "never excused, a crash: "),
        (COUNTEREXAMPLE, "never excused, a counterexample of Hypothesis: "),
        (fails_first(1, tier="pure"), "assert False"),
    ],
    ids=["wrong numbers", "a crash", "a counterexample", "a pure test"],
)
def test_these_are_never_excused(tmp_path: Path, text: str, reason: str) -> None:
    done = run(tmp_path, PASSES, text, workers=2)
    assert done.returncode == 1
    assert "again, alone" not in done.stdout
    (line,) = (each for each in done.stdout.splitlines()[-4:] if each.startswith("FAILED"))
    assert f" - {reason}" in line


def test_an_error_in_a_test_of_numbers_is_excused(tmp_path: Path) -> None:
    done = run(tmp_path, fails_first(1, "raise TimeoutError", tier="exact\n@pytest.mark.real"))
    assert done.returncode == 0, done.stdout
    assert " · 1 FLAKY · " in done.stdout


def test_after_a_failed_pure_test_nothing_else_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_bad(): assert False\n", fails_first(0))
    assert done.returncode == 1
    assert " · 1 failed · 0 passed · " in done.stdout


def test_a_log_that_was_not_written_whole_fails_the_whole(tmp_path: Path) -> None:
    cut = "def cut():\n    with open('.tests/pure.jsonl', 'a') as log: log.write('{\"nodeid\": \"te')\n"
    done = run(tmp_path, PASSES + cut + "import atexit\natexit.register(cut)\n")
    assert done.returncode == 1
    assert "\nFAILED pure.jsonl - never excused, damaged: a line of it is no report\n" in done.stdout


def test_a_full_disk_is_told_before_any_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=500_000_000))
    monkeypatch.chdir(tmp_path)
    assert main(["--quick"]) == UNUSABLE
    assert not (tmp_path / ".tests").exists()


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, MANY_FAIL)
    assert done.returncode == 1
    assert "again, alone" not in done.stdout
    assert " · 16 failed · 1 passed · " in done.stdout


def test_one_failed_fixture_is_one_failure(tmp_path: Path) -> None:
    done = run(tmp_path, PASSES, SET_UP_ONCE)
    assert done.returncode == 0, done.stdout
    assert " · 0 failed · 17 passed · 0 skipped · 16 FLAKY · " in done.stdout


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_cannot_be_imported_fails_the_whole(tmp_path: Path, workers: int) -> None:
    done = run(tmp_path, PASSES, fails_first(0), "import nothing_like_it\n", workers=workers)
    assert done.returncode in (1, 2)
    assert "\nFAILED test_2.py - never excused, cannot be imported: " in done.stdout
    assert "nothing_like_it" in done.stdout.partition("\nFAILED test_2.py")[2]


def test_a_test_that_has_vanished_is_not_taken_for_passed(tmp_path: Path) -> None:
    removed = fails_first(1, "Path(__file__).unlink(); assert False")
    done = run(tmp_path, PASSES, removed)
    assert done.returncode == 1
    assert "\nFAILED test_1.py::test_at_last - assert False\n" in done.stdout


def test_tiers_are_chosen(tmp_path: Path) -> None:
    files = (PASSES, *(fails_first(0, tier=tier) for tier in ("real", "alone", "deep")))
    quick, usual, nightly = (run(tmp_path, *files, words=words) for words in (("--quick",), (), ("--deep",)))
    assert " · 1 passed · " in closing(quick)
    assert closing(quick).endswith(" · pure: ran · real: not run · alone: not run · deep: not run")
    assert " · 3 passed · " in closing(usual)
    assert closing(usual).endswith(" · pure: ran · real: ran · alone: ran · deep: not run")
    assert " · 4 passed · " in closing(nightly)
    assert closing(nightly).endswith(" · pure: ran · real: ran · alone: ran · deep: ran")
    assert run(tmp_path, words=("test_0.py",)).stdout.count("1 passed") == 3
    assert run(tmp_path, words=("test_9.py",)).returncode == 4


def test_a_file_is_imported_again_for_the_tiers_of_its_tests_alone(tmp_path: Path) -> None:
    counts = (
        "from pathlib import Path\nwith Path(__file__).with_suffix('.imports').open('a') as file: file.write('x')\n"
    )
    done = run(tmp_path, counts + PASSES, counts + fails_first(0))
    assert " · 0 failed · 2 passed · " in done.stdout
    assert [(tmp_path / f"test_{number}.imports").read_text() for number in range(2)] == ["x", "xx"]


def test_with_the_deep_tests_each_hidl_is_started_anew(tmp_path: Path) -> None:
    asks = "import os\ndef test_anew(): assert os.environ['HIDL_TEST_ANEW'] == '1'\n"
    assert run(tmp_path, asks, words=("--deep",)).returncode == 0


def test_evidence_of_a_failure_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, fails_first(9), words=())
    assert "this machine then" in done.stdout
    assert "tools.run_tests" in done.stdout  # among the processes


@pytest.mark.deep
def test_stacks_are_written_near_the_time_limit(tmp_path: Path) -> None:
    program = "def waits_forever(): import time; time.sleep(60)\\nwaits_forever()"
    waits = f"subprocess.run([sys.executable, '-c', '{program}'])"
    late = f"import pytest, subprocess, sys\n@pytest.mark.real\n@pytest.mark.timeout(10)\ndef test_late(): {waits}\n"
    done = run(tmp_path, late)
    assert done.returncode == 1
    assert "waits_forever" in done.stdout.partition("stacks at 80% of the time limit")[2]


def test_the_quarantine_is_in_order() -> None:
    """Expired: cure it, or take out what cannot be tested and say so."""
    assert faults(QUARANTINE.read_text(encoding="utf-8"), date.today()) == []
    for name in quarantined():
        file, _, rest = name.partition("::")
        function = rest.partition("[")[0].rpartition("::")[2]
        assert f"def {function}(" in (REPOSITORY / file).read_text(encoding="utf-8"), f"{name}: there is no such test"


TODAY = date(2026, 11, 25)


def entry(**changes: object) -> str:
    values = {"id": "tests/test_a.py::test_a", "cause": "load", "evidence": "1 of 100", "expires": TODAY} | changes
    lines = (f"{key} = {value if isinstance(value, date) else repr(value)}\n" for key, value in values.items())
    return "[[test]]\n" + "".join(lines)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (entry(expires=TODAY - timedelta(1)), "expires 2026-11-24"),
        (entry(expires=TODAY + timedelta(22)), "at most 21 days"),
        (entry(evidence=""), "without evidence"),
        (entry(cause="bad luck"), "the cause is load, order, port, clock or peer"),
        (entry() * 2, "a second entry"),
        ("".join(entry(id=f"a::{number}") for number in range(MOST_ENTRIES + 1)), "11 entries; 10 at most"),
    ],
    ids=["expired", "too long", "no evidence", "no cause", "twice", "an eleventh"],
)
def test_a_fault_of_the_quarantine_is_found(text: str, fault: str) -> None:
    assert any(fault in each for each in faults(text, TODAY))


def test_a_quarantine_in_order_has_no_faults() -> None:
    assert faults(entry(expires=TODAY + timedelta(21)), TODAY) == []
