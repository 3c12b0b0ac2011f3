"""All tests, by tiers; those that fail beside others run again, alone, and are named. ``make test`` runs it.

    python -m tools.run_tests [--quick | --deep] [PATH...]

First the *pure* tests: if one fails, nothing else runs. Then the *real* ones, then those that must be *alone*; with
``--deep`` the *deep* ones too. A test of these that fails beside others can do so by that alone: up to fifteen failures
run again when all else is over, in a process of their own, at most twice. One that passes then is FLAKY: it is named,
and does not stop a change. Never excused, even once: a failed pure test, wrong numbers (the marker ``exact``), a
counterexample of Hypothesis, a crash, a file that cannot be imported. Exit status: 0, or 1, or pytest's own if worse.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools import slowness

#: A property of a report: why this failure is never excused by the test that passes later (tests/evidence.py).
NEVER_EXCUSED = "never excused"
#: More causes of failure than these are no accident.
MOST = 15
TRIES = 2
#: Logs and JUnit files of the last run.
RESULTS = Path(".tests")
#: The expression that chooses each tier's tests: a module may be real, and one of its tests deep.
PHASES = {"pure": "pure", "real": "real and not (alone or deep)", "alone": "alone and not deep", "deep": "deep"}
#: Variables for tests/tiers.py: the tier that is chosen, and the file in which a phase notes the tiers of each file of
#: tests, so that those after it import no others.
TIER, KNOWN = "HIDL_TEST_TIER", "HIDL_TEST_KNOWN_TIERS"
#: A variable for tests/forks.py: each hidl is started anew, by no fork.
ANEW = "HIDL_TEST_ANEW"
#: Gigabytes that must be free where temporary files are made: for all tests, which fill 10 to 11, and for pure ones.
FREE_GB, FREE_QUICK_GB = 12, 1
#: Ends of pytest: all passed, some failed, unusable as asked for, none was chosen. All else is worse than a failure.
PASSED, FAILED, UNUSABLE, NONE_CHOSEN = 0, 1, 4, 5


@dataclass(frozen=True)
class Failure:
    """One test's."""

    reason: str  # one line
    cause: str  # equal for tests that fail by one fixture
    never_excused: str | None


@dataclass
class Ends:
    """How tests have ended, by their ids."""

    passed: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    status: int = PASSED

    def add(self, other: Ends) -> None:
        """Those of another session: of other tests."""
        self.passed |= other.passed
        self.skipped |= other.skipped
        self.failed |= other.failed
        if other.status != NONE_CHOSEN:
            self.status = max(self.status, other.status)


class Session:
    """Starts pytest, with what all its processes share."""

    def __init__(self, paths: Sequence[str], shared: Path, *, anew: bool) -> None:
        self._paths = paths
        self._environment = os.environ | {"HIDL_TEST_SHARED": str(shared), KNOWN: str(shared / "tiers.json")}
        if anew:
            self._environment[ANEW] = "1"

    def phase(self, name: str) -> Ends:
        """All tests of a tier."""
        alone = ("-n", "0") if name == "alone" else ()
        return self._run(name, "-m", PHASES[name], *alone, *self._paths, tier=name)

    def again(self, number: int, ids: Iterable[str]) -> Ends:
        """These tests, one after the other, in one new process."""
        file = RESULTS / f"again-{number}.txt"
        file.write_text("".join(f"{each}\n" for each in ids), encoding="utf-8")
        return self._run(f"again-{number}", "-n", "0", f"@{file}")

    def _run(self, name: str, *words: str, tier: str = "") -> Ends:
        log = RESULTS / f"{name}.jsonl"
        command = (
            sys.executable,
            "-m",
            "pytest",
            *words,
            f"--report-log={log}",
            f"--junitxml={log.with_suffix('.xml')}",
        )
        status = subprocess.run(command, env=self._environment | {TIER: tier}, check=False).returncode
        return ends(log, status)


def ends(log: Path, status: int) -> Ends:
    """What a log of pytest-reportlog tells."""
    found = Ends(status=status if status >= 0 else 128 - status)
    for report in _reports(log):
        if report is None:
            found.failed[log.name] = Failure("a line of it is no report", log.name, "damaged")
            found.status = max(found.status, FAILED)
            continue
        name = report["nodeid"]
        if report["outcome"] == "failed":
            found.failed.setdefault(name, _failure(report))
        elif report["outcome"] == "skipped":
            found.skipped[name] = _why_skipped(report)
        elif report["when"] == "call":
            found.passed.add(name)
    found.passed -= found.failed.keys()
    return found


def _reports(log: Path) -> Iterator[dict[str, Any] | None]:
    """Those of tests, and of files that cannot be imported; None for a line that was not written whole."""
    if log.is_file():
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                report = json.loads(line)
            except json.JSONDecodeError:
                yield None
                continue
            if report["$report_type"] == "TestReport" or report.get("outcome") == "failed":
                yield report


def _failure(report: dict[str, Any]) -> Failure:
    told = report["longrepr"]
    crash = told.get("reprcrash") if isinstance(told, dict) else None
    lines = (crash["message"] if crash else str(told)).strip().splitlines()
    if report["$report_type"] == "CollectReport":
        return Failure(lines[-1][:300], report["nodeid"], "cannot be imported")
    cause = f"{crash['path']}:{crash['lineno']}" if crash and report["when"] == "setup" else report["nodeid"]
    never = dict(report["user_properties"]).get(NEVER_EXCUSED)
    if report["when"] == "???":  # xdist's word for a test whose process is gone
        never = "a crash"
    return Failure(lines[0][:300], cause, never)


def _why_skipped(report: dict[str, Any]) -> str:
    told = report["longrepr"]
    text = str(told[2] if isinstance(told, list) else told).removeprefix("Skipped: ")
    return re.sub(r"^\S+::\S+ ", "", text.partition("\n")[0])


def second_pass(session: Session, failed: dict[str, Failure]) -> dict[str, Failure]:
    """Those that fail alone too, twice."""
    left = dict(failed)
    for number in range(1, TRIES + 1):
        print(f"\n{len(left)} failed; again, alone ({number} of {TRIES}):", *left, sep="\n", flush=True)
        again = session.again(number, left)
        if again.status not in (PASSED, FAILED):
            return left
        left = {name: again.failed.get(name, first) for name, first in left.items() if name not in again.passed}
        if not left or any(each.never_excused for each in left.values()):
            break
    return left


def main(words: Sequence[str] | None = None) -> int:
    """Run them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.run_tests", description=__doc__.partition("\n")[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--quick", action="store_true", help="only the pure tests")
    chosen.add_argument("--deep", action="store_true", help="the deep tests too")
    parser.add_argument("paths", nargs="*", help="files or directories of tests; default: all")
    options = parser.parse_args(words)
    began = time.monotonic()
    directory, needed = tempfile.gettempdir(), FREE_QUICK_GB if options.quick else FREE_GB
    free = shutil.disk_usage(directory).free / 1e9
    factor = slowness.known()
    print(f"slowness {factor:.1f} ({slowness.load()}), {free:.0f} GB free in {directory}", flush=True)
    if free < needed and not options.paths:
        print(f"All these tests need {needed} GB there: make room, or let TMPDIR name another directory.")
        return UNUSABLE
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir()
    phases = ["pure"] if options.quick else [name for name in PHASES if name != "deep" or options.deep]
    with tempfile.TemporaryDirectory(prefix="hidl-tests-", ignore_cleanup_errors=True) as shared:
        session = Session(options.paths, Path(shared), anew=options.deep)
        total, flaky = Ends(), {}
        took = dict.fromkeys(PHASES, "not run")
        for name in phases:
            start = time.monotonic()
            total.add(session.phase(name))
            took[name] = f"{time.monotonic() - start:.0f} s"
            if total.status > FAILED or (name == "pure" and total.status == FAILED):
                break
        else:
            if total.status == FAILED and _excusable(total.failed):
                first, total.failed = total.failed, second_pass(session, total.failed)
                flaky = {name: failure for name, failure in first.items() if name not in total.failed}
                total.passed |= flaky.keys()
                total.status = FAILED if total.failed else PASSED
    _close(total, flaky, factor, time.monotonic() - began, took)
    return total.status if total.passed or total.skipped or total.failed else total.status or NONE_CHOSEN


def _excusable(failed: dict[str, Failure]) -> bool:
    causes = {failure.cause for failure in failed.values()}
    return bool(failed) and len(causes) <= MOST and not any(failure.never_excused for failure in failed.values())


def _close(total: Ends, flaky: dict[str, Failure], factor: float, seconds: float, took: dict[str, str]) -> None:
    """The closing lines: of pytest's form is the last. ``took``: how long each tier, or that it was not run."""
    print()
    for reason, count in Counter(total.skipped.values()).most_common():
        print(f"skipped {count}: {reason}")
    for name, failure in flaky.items():
        print(f"FLAKY (passed alone; find out why): {name} - {failure.reason}")
    for name, failure in total.failed.items():
        never = f"{NEVER_EXCUSED}, {failure.never_excused}: " if failure.never_excused else ""
        print(f"FAILED {name} - {never}{failure.reason}")
    counts = {"failed": len(total.failed), "passed": len(total.passed), "skipped": len(total.skipped)}
    told = [f"slowness {factor:.1f}", *(f"{count:,} {name}" for name, count in counts.items()), f"{len(flaky)} FLAKY"]
    print(" · ".join([*told, *(f"{name}: {length}" for name, length in took.items())]))
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no tests ran"
    print(f" {summary} in {seconds:.2f}s ".center(120, "="))


if __name__ == "__main__":
    sys.exit(main())
