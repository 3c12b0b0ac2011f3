"""``--metric``: from words to metrics and patterns."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.plan.program import unit_of, with_metrics
from hidl_cli.plan.workload import Metric, Workload


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload.model_validate(
        {
            "name": "w",
            "title": "t",
            "program": {"command": ["./a.out"], "patterns": [{"pattern": "x (a)", "metric": "rate"}]},
            "alternatives": [{"module": "m", "when": {"kind": "b"}}],
            "parameters": {"kind": {"type": "choice", "choices": ["a", "b"], "default": "a"}},
            "stacks": [{"stack": "mpi"}],
            "metrics": {"rate": {"unit": "1/s", "better": "higher"}, "checksum": {"unit": "1"}},
            "scaling": {"metric": "rate", "kind": "weak", "target": 0.7},
        }
    )


def test_a_metric_is_added_to_every_program(workload: Workload) -> None:
    extended = with_metrics(workload, ["images_per_second=Img/sec: ([0-9.]+)"])
    assert extended.metrics["images_per_second"] == Metric(unit="images/s", better="higher")
    assert [one.pattern for one in extended.alternatives[0].patterns] == ["Img/sec: ([0-9.]+)"]
    assert [one.metric for one in extended.program.patterns] == ["rate", "images_per_second"]
    assert extended.scaling == workload.scaling


def test_a_pattern_replaces_the_workloads_own(workload: Workload) -> None:
    extended = with_metrics(workload, ["rate=y (b)"])
    assert [one.pattern for one in extended.program.patterns] == ["y (b)"]
    assert extended.metrics["rate"] == workload.metrics["rate"]


def test_another_unit_has_a_direction_of_its_own(workload: Workload) -> None:
    assert with_metrics(workload, ["rate[unit=s]=y (b)"]).metrics["rate"] == Metric(unit="s", better="lower")


def test_options_stand_in_brackets(workload: Workload) -> None:
    word = "latency[unit=us, printed=ms, take=min, skip=2, ranks=0, better=lower]=size=8 ([0-9=]+)"
    extended = with_metrics(workload, [word])
    found = extended.program.patterns[-1]
    assert (found.pattern, found.take, found.skip, found.ranks) == ("size=8 ([0-9=]+)", "min", 2, 0)
    assert (extended.metrics["latency"].unit, found.printed) == ("us", "ms")


def test_every_error_in_every_word_is_reported(workload: Workload) -> None:
    words = ["b", "X=(a)", "c[untl=4,take=lst,skip=-1]=(a)(b)", "d=(?=a)", "e=", "f=(a)", "f=(a)"]
    with pytest.raises(InvalidInput) as caught:
        with_metrics(workload, words)
    assert [problem.message for problem in caught.value.problems] == [
        "--metric 'b' has no '='",
        "--metric X: invalid metric name",
        "--metric c: unknown option 'untl'",
        "--metric c: invalid take 'lst'",
        "--metric c: invalid skip '-1'",
        "--metric c: the number is ambiguous: the pattern has 2 groups",
        "--metric d: look-ahead and look-behind are unsupported, since patterns are matched in linear time "
        "(invalid perl operator: (?=)",
        "--metric e: no pattern",
        "--metric f: given twice",
    ]
    assert [problem.suggestion for problem in caught.value.problems][2:4] == ["unit", "last"]


@pytest.mark.parametrize(
    ("word", "kind"),
    [("images_per_second=(a)", "weak"), ("wall_s=(a)", "strong"), ("score[better=lower]=(a)", "strong")],
)
def test_a_study_judges_the_first_metric(workload: Workload, word: str, kind: str) -> None:
    scaling = with_metrics(workload, [word, "other=(a)"], judged=True).scaling
    assert scaling is not None
    assert (scaling.metric, scaling.kind, scaling.target) == (word.partition("=")[0].partition("[")[0], kind, 0.7)


def test_a_rate_of_the_same_work_is_strong_scaling(workload: Workload) -> None:
    scaling = with_metrics(workload, ["ns_per_day=(a)"], judged=True, scaling="strong").scaling
    assert scaling is not None
    assert (scaling.metric, scaling.kind) == ("ns_per_day", "strong")


def test_a_study_requires_a_direction(workload: Workload) -> None:
    with pytest.raises(InvalidInput, match="requires a direction for --metric"):
        with_metrics(workload, ["loss=(a)"], judged=True)


def test_a_time_cannot_judge_weak_scaling(workload: Workload) -> None:
    with pytest.raises(InvalidInput, match="weak scaling requires a rate"):
        with_metrics(workload, ["wall_s=(a)"], judged=True, scaling="weak")


@pytest.mark.parametrize(
    ("name", "unit"),
    [("images_per_second", "images/s"), ("ns_per_day", "ns/day"), ("wall_seconds", "s"), ("latency_us", "us"),
     ("seconds_per_step", "s/step"), ("loss", "1")],
)  # fmt: skip
def test_a_name_reports_the_unit(name: str, unit: str) -> None:
    assert unit_of(name) == unit
