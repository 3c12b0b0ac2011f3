"""The program that a bisect job runs: it measures mixtures until the answer is certain or the budget is spent.

::

    python -m hidl_cli.bisect.search DIRECTORY CONFIDENCE BUDGET

A mixture is the good run's configuration with some of the bad run's changes. Each mixture is a run with its own
directory and job script, started in this job's allocation. Mixtures are measured in rounds. The journal is written
before each round and after each run, so that only an interrupted run is repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from hidl_cli import process
from hidl_cli.analysis.samples import by_measure, in_common_units
from hidl_cli.bisect.journal import Bisect, Journal, JournalEntry, Question, mixture
from hidl_cli.errors import HidlError, JobFailed
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.launch_plan import create_run, plan_of
from hidl_cli.plan.planning import new_id
from hidl_cli.record import Run
from hidl_cli.runs.conclude import describe_company
from hidl_cli.runs.metrics import read_steps
from hidl_cli.stack.installation import hold_lock
from hidl_cli.store.extract import samples_of

#: Maximum number of attempts if another run uses the same cores.
_TRIES = 3


class _Disturbed(HidlError):
    """Another run used the same cores during all attempts."""


#: Function that runs a mixture, given the numbers of its changes and a run id, and returns the metric's value.
Measuring = Callable[[Question, tuple[int, ...], str], float]


def main(words: list[str]) -> int:
    """Continue a bisect and return the exit status."""
    bisect, confidence, budget = Bisect(Path(words[0])), float(words[1]), int(words[2])
    try:
        with hold_lock(bisect.directory / "lock", lambda line: print(f"hidl: {line}", file=sys.stderr, flush=True)):
            search(bisect, confidence, budget, partial(measure, bisect))
    except HidlError as error:
        print(f"hidl: {error.message}", file=sys.stderr)
        return 1
    return 0


def search(bisect: Bisect, confidence: float, budget: int, measure: Measuring) -> None:
    """Run one round of mixtures after another until the answer is certain or the budget is spent.

    ``measure`` runs one mixture. Raises ``JobFailed`` if the good or the bad configuration cannot run.
    """
    question, journal = bisect.question(), bisect.journal()
    every = tuple(range(len(question.changes.tried)))
    journal = replace(journal, sessions=journal.sessions + 1)

    def run(numbers: tuple[int, ...], round_: int) -> Journal:
        entry = _run_mixture(question, JournalEntry(round_, journal.sessions, numbers, _new_id(), None), measure)
        extended = replace(journal, entries=(*journal.entries, entry))
        bisect.write(extended)
        return extended

    if journal.is_over(question, confidence, budget):
        return
    for numbers in dict.fromkeys([(), every]):  # warm up file systems, caches and clocks
        journal = run(numbers, 0)
    while True:
        for numbers in journal.left:
            if journal.measured >= budget:
                return
            journal = run(numbers, journal.round)
        if journal.is_over(question, confidence, budget):
            return
        journal = journal.next_round(question, confidence)
        bisect.write(journal)


def _run_mixture(question: Question, planned: JournalEntry, measure: Measuring) -> JournalEntry:
    """Run a mixture and return its journal entry, which contains the metric's value or the reason for the failure."""
    try:
        return replace(planned, value=measure(question, planned.changes, planned.run))
    except _Disturbed:
        raise
    except HidlError as error:
        if len(planned.changes) in (0, len(question.changes.tried)):
            which = "bad" if planned.changes else "good"
            raise JobFailed(f"the {which} configuration cannot run: {error.message} (run {planned.run})") from error
        return replace(planned, failure=error.message)


def _new_id() -> str:
    return new_id("bisect", datetime.now(timezone.utc))


def measure(bisect: Bisect, question: Question, numbers: tuple[int, ...], run_id: str) -> float:
    """Run the good configuration with these changes, and return the metric's value.

    Raises ``HidlError`` if the run has no value, or if another run used its cores during every attempt.
    """
    tried = question.changes.tried
    plan = mixture(question.good, question.bad, [tried[number] for number in numbers], run_id)
    run = create_run(plan, job_script(plan), root=bisect.runs)
    for _ in range(_TRIES):
        process.run(["bash", run.script], cwd=run.directory, log=run.stdout)
        company = describe_company(run, plan)
        if company is None:
            return value_of(run, question)
    raise _Disturbed(f"run {run_id}: {company}")


def value_of(run: Run, question: Question) -> float:
    """Return the metric's value as measured by a finished run. Raises ``HidlError`` if there is none."""
    plan = plan_of(run)
    run.write("metrics", {"schema": "hidl.run-metrics/1", "run": run.id, "steps": read_steps(run, plan)})
    wanted = question.metric.measure
    samples = in_common_units(samples_of(run), unit=question.metric.unit)
    for measure, (found, *_) in by_measure(samples, across_series=True).items():
        if (measure.metric, measure.ranks, measure.nodes) == (wanted.metric, wanted.ranks, wanted.nodes):
            if found.value <= 0:
                raise HidlError(f"metric {wanted.metric} must be positive, got {found.value}")
            return found.value
    raise HidlError(f"run {run.id} has no metric {wanted.metric}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
