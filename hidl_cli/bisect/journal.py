"""What a bisect keeps, in a directory of its own: it goes on from there, in another job or on another day.

::

    $XDG_STATE_HOME/hidl/bisects/<time>-<digest>/
        question.json      the two runs with their plans, the metric with its recorded values, the changes
        journal.json       the rounds as chosen, and each run with what it measured; written after each run
        runs/<id>/         the directories of the runs
        jobs/<id>/         the jobs that ran them
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hidl_cli import paths
from hidl_cli.analysis.culprit import search
from hidl_cli.analysis.culprit.posterior import Expectation, Observation
from hidl_cli.analysis.culprit.search import Answer, Mixture
from hidl_cli.bisect.changes import Changes, Side, changes_between
from hidl_cli.bisect.sides import Metric
from hidl_cli.documents import read_json, write_json
from hidl_cli.errors import HidlError
from hidl_cli.record.run import Run, all_runs
from hidl_cli.redaction import holds_secret

QUESTION, JOURNAL = "hidl.bisect-question/1", "hidl.bisect-journal/1"


@dataclass(frozen=True)
class Question:
    """What is asked: between which runs, by which metric, among which changes."""

    good: Side
    bad: Side
    metric: Metric
    changes: Changes

    @classmethod
    def between(cls, good: Side, bad: Side, metric: Metric) -> Question:
        """Return the question of the two."""
        return cls(good, bad, metric, changes_between(good, bad))

    @property
    def digest(self) -> str:
        """The same for the same runs and the same metric."""
        runs = [self.good.plan.run, self.bad.plan.run, list(self.metric.measure)]
        return hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]

    @property
    def seed(self) -> int:
        """The seed of all that is random in the search."""
        return int(self.digest, 16)

    @property
    def expectation(self) -> Expectation:
        """What to expect of the changes."""
        return self.metric.expectation([change.weight for change in self.changes.tried])


@dataclass(frozen=True)
class Entry:
    """One run. ``round``: its number from 1, 0 for a warm-up; ``session``: the job; ``value`` of the metric.

    ``failure``: why there is no value.
    """

    round: int
    session: int
    changes: tuple[int, ...]
    run: str
    value: float | None
    failure: str | None = None


@dataclass(frozen=True)
class Journal:
    """The runs so far. ``planned``: the mixtures of the last round, in order; ``sessions``: jobs so far."""

    entries: tuple[Entry, ...] = ()
    planned: tuple[tuple[int, ...], ...] = ()
    round: int = 0
    sessions: int = 0

    @property
    def measured(self) -> int:
        """The number of runs that count."""
        return sum(entry.round > 0 for entry in self.entries)

    @property
    def left(self) -> tuple[tuple[int, ...], ...]:
        """The mixtures of the last round that have not run."""
        return self.planned[sum(entry.round == self.round for entry in self.entries) :] if self.round else ()

    @property
    def broken(self) -> frozenset[Mixture]:
        """The mixtures that cannot run."""
        return frozenset(frozenset(entry.changes) for entry in self.entries if entry.failure is not None)

    def observations(self, metric: Metric) -> list[Observation]:
        """Return what was measured. What is left of a round after an interruption is a round of its own."""
        return [
            Observation(f"{entry.round:04}.{entry.session}", frozenset(entry.changes), metric.slowness(entry.value))
            for entry in self.entries
            if entry.round > 0 and entry.value is not None and entry.value > 0
        ]

    def with_round(self, mixtures: Sequence[Mixture]) -> Journal:
        """Return the journal with another round begun."""
        return replace(self, round=self.round + 1, planned=tuple(tuple(sorted(each)) for each in mixtures))

    def next_round(self, question: Question, confidence: float) -> Journal:
        """Return the journal with the round that says the most after those so far."""
        observations, expected = self.observations(question.metric), question.expectation
        mixtures = search.next_round(
            observations, expected, confidence=confidence, seed=question.seed, broken=self.broken
        )
        return self.with_round(mixtures)

    def answer(self, question: Question, confidence: float) -> Answer:
        """Return what the runs say."""
        observations, expected = self.observations(question.metric), question.expectation
        return search.answer(observations, expected, question.metric.recorded, confidence=confidence)

    def is_over(self, question: Question, confidence: float, budget: int) -> bool:
        """Return whether no further run is needed: the budget is spent, or the answer is certain enough."""
        return self.measured >= budget or self.answer(question, confidence).outcome != "undecided"


@dataclass(frozen=True)
class Bisect:
    """A bisect by its directory."""

    directory: Path

    @property
    def id(self) -> str:
        """The name of its directory."""
        return self.directory.name

    def question(self) -> Question:
        """Read what is asked; ``HidlError`` if this hidl cannot."""
        found: Question = _read(self.directory / "question.json", QUESTION, TypeAdapter(Question))
        return found

    def journal(self) -> Journal:
        """Read the runs so far; ``HidlError`` if this hidl cannot."""
        file = self.directory / "journal.json"
        return _read(file, JOURNAL, TypeAdapter(Journal)) if file.exists() else Journal()

    def write(self, journal: Journal) -> None:
        """Keep the runs so far."""
        write_json(self.directory / "journal.json", {"schema": JOURNAL, **asdict(journal)})

    @property
    def runs(self) -> Path:
        """Where the directories of its runs are."""
        return self.directory / "runs"

    @property
    def jobs(self) -> Path:
        """Where the directories of its jobs are."""
        return self.directory / "jobs"

    def last_job(self) -> Run | None:
        """Return the last job that was submitted; None if there is none."""
        return next(all_runs(self.jobs), None)


def open_bisect(question: Question, *, fresh: bool = False) -> Bisect:
    """Return the bisect of that question: the last one, to go on with, or a new one.

    What it has measured counts only for the same changes. Their stacks may have been installed elsewhere since.
    """
    known = None if fresh else find_bisect(question)
    if known is None or known.question().changes != question.changes:
        known = Bisect(paths.bisects() / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S-%f}-{question.digest}")
    document = TypeAdapter(Question).dump_python(question, mode="json")
    known.directory.mkdir(parents=True, exist_ok=True)
    if holds_secret(document):
        known.directory.chmod(0o700)  # the job needs them
    write_json(known.directory / "question.json", {"schema": QUESTION, **document})
    return known


def find_bisect(question: Question) -> Bisect | None:
    """Return the last bisect of that question; None if there is none."""
    known = sorted(paths.bisects().glob(f"*-{question.digest}/question.json"))
    return Bisect(known[-1].parent) if known else None


def _read(file: Path, schema: str, adapter: TypeAdapter[Any]) -> Any:
    try:
        document = read_json(file)
        if document.pop("schema", None) != schema:
            raise ValueError(f"not a document of schema {schema}")
        return adapter.validate_python(document)
    except (OSError, ValueError, ValidationError, AttributeError) as error:
        raise HidlError(
            f"{file} cannot be read: {error}", hint="hidl bisect GOOD BAD --fresh begins again, and keeps it"
        ) from error
