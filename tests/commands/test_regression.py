"""``hidl results compare`` and ``hidl results history`` as users call them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from tests.conftest import Hidl
from tests.store.run_directories import judged

pytestmark = pytest.mark.real

NIGHTS = 40
STEP = 25


@pytest.fixture
def nightly(hidl: Hidl) -> Hidl:
    """hidl, and forty nights: from the 26th on (2026-03-26), a new lock and tuning, and 10 % less."""
    rates = 100 * np.exp(0.01 * np.random.default_rng(1).standard_normal(NIGHTS))
    rates[STEP:] *= 0.9
    for night, rate in enumerate(rates):
        when = datetime(2026, 3, 1, 2, tzinfo=timezone.utc) + timedelta(days=night)
        changed = {"lock": "1" * 12, "tuning": {"MPIR_CVAR_X": "1"}} if night >= STEP else {}
        judged(hidl.runs, float(rate), run=f"n{night:02}-toy", created=when.isoformat(), **changed)
    return hidl


@pytest.fixture
def two_runs(hidl: Hidl) -> Hidl:
    """hidl, and two runs of five repetitions: b is 20 % slower than a."""
    for name, level in (("a", 100.0), ("b", 80.0)):
        values = [level * (1 + 0.001 * i) for i in range(5)]
        created = f"2026-01-0{1 + (name == 'b')}T00:00:00+00:00"
        judged(hidl.runs, values, run=f"toy-{name}", created=created, repetitions=5)
    return hidl


class TestCompare:
    def test_ends_with_10_where_b_is_worse(self, two_runs: Hidl) -> None:
        (found,) = two_runs.json("results", "compare", "toy-a", "toy-b", status=10)["differences"]
        assert found["outcome"] == "worse"
        assert found["shift"] == pytest.approx(-0.2, abs=0.01)

    @pytest.mark.parametrize(("repetitions", "outcome", "status"), [(3, "inconclusive", 11), (5, "different", 10)])
    def test_a_metric_without_a_direction_decides_too(
        self, hidl: Hidl, repetitions: int, outcome: str, status: int
    ) -> None:
        for name, value in (("a", 10.0), ("b", 99.0)):
            score = {"score": {"value": value, "unit": "1", "samples": [value]}}
            judged(hidl.runs, run=f"toy-{name}", repetitions=repetitions, metrics=score)
        found = hidl.json("results", "compare", "toy-a", "toy-b", status=status)
        assert found["outcome"] == found["differences"][0]["outcome"] == outcome

    def test_ends_with_0_where_it_is_better_or_the_same(self, two_runs: Hidl) -> None:
        assert two_runs("results", "compare", "toy-b", "toy-a").returncode == 0
        assert two_runs("results", "compare", "toy-a", "toy-a").returncode == 0

    def test_ends_with_0_within_the_tolerance(self, two_runs: Hidl) -> None:
        assert two_runs("results", "compare", "toy-a", "toy-b", "--tolerance", "25").returncode == 0

    def test_ends_with_11_where_there_is_too_little_to_report(self, nightly: Hidl) -> None:
        completed = nightly("results", "compare", "n01-toy", "n30-toy")
        assert completed.returncode == 11
        assert "1 and 1 repetitions are too few to show a difference" in completed.stderr

    def test_splits_a_workload_by_time(self, nightly: Hidl) -> None:
        document = nightly.json("results", "compare", "toy", "--since", "2026-03-26T00:00:00Z", status=10)
        (found,) = document["differences"]
        assert (found["count_a"], found["count_b"], found["independent"]) == (STEP, NIGHTS - STEP, "runs")

    def test_leaves_out_what_lies_between_two_times(self, nightly: Hidl) -> None:
        times = ("--before", "2026-03-10T00:00:00Z", "--since", "2026-03-30T00:00:00Z")
        (found,) = nightly.json("results", "compare", "toy", *times, status=10)["differences"]
        assert (found["count_a"], found["count_b"]) == (9, 11)

    def test_shows_a_table_and_says_what_is_worse(self, two_runs: Hidl) -> None:
        completed = two_runs("results", "compare", "toy-a", "toy-b", COLUMNS="160")
        assert "-20.0%" in completed.stdout
        assert "worse: rate of toy on 1 rank(s): differs by -20.0% (p = 0.0079)" in completed.stderr

    @pytest.mark.parametrize("asked", [["toy-a"], ["toy-a", "none"], ["toy-a", "toy-b", "--metric", "none"]])
    def test_of_what_is_not_there_is_a_usage_error(self, two_runs: Hidl, asked: list[str]) -> None:
        assert two_runs("results", "compare", *asked).returncode == 2


class TestHistory:
    def test_reports_the_night_the_size_and_what_changed(self, nightly: Hidl) -> None:
        (found,) = nightly.json("results", "history", "toy")["histories"]
        (step,) = found["steps"]
        assert step["run"] == "n25-toy"
        assert step["change"] == pytest.approx(-0.1, abs=0.02)
        assert [one["what"] for one in step["circumstances"]] == ["lock", "MPIR_CVAR_X"]

    def test_of_a_series_is_that_of_its_digest(self, nightly: Hidl) -> None:
        (found,) = nightly.json("results", "history", "toy")["histories"]
        digest = found["measure"]["series"]
        assert nightly.json("results", "history", digest[:8])["histories"] == [found]

    def test_is_shown_as_a_table(self, nightly: Hidl) -> None:
        completed = nightly("results", "history", "toy", COLUMNS="160")
        assert "2026-03-26" in completed.stdout
        assert "MPIR_CVAR_X: none -> 1" in completed.stdout

    def test_of_a_few_runs_says_that_they_are_few(self, two_runs: Hidl) -> None:
        assert "2 run(s): detecting changes requires at least 20" in two_runs("results", "history", "toy").stderr

    def test_of_nothing_is_a_usage_error(self, hidl: Hidl) -> None:
        assert hidl("results", "history", "toy").returncode == 2
