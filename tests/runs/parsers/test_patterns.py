"""Metrics by patterns, from output of any kind."""

from __future__ import annotations

import random
import resource
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import MetricMissing
from hidl_cli.plan.units import convert
from hidl_cli.plan.workload import Metric, Pattern
from hidl_cli.runs.parsers import patterns as parser
from hidl_cli.runs.parsers.patterns import BLOCK, MOST_SAMPLES, read_patterns

RATE = "Img/sec: ([0-9.,]+)"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "errors.txt").write_bytes(b"")
    return tmp_path


def read(step: Path, pattern: str, output: bytes | None = None, *, unit: str = "x", ranks: int = 1, **keys: Any) -> Any:
    """What the pattern finds as metric ``m`` in the output of a step."""
    if output is not None:
        (step / "output.txt").write_bytes(output)
    one = Pattern(pattern=pattern, metric="m", **keys)
    return read_patterns([one], {"m": Metric(unit=unit)}, step, ranks=ranks)["m"]


def test_the_mean_of_all_numbers_is_the_value(step: Path) -> None:
    found = read(step, RATE, b"Img/sec: 100\nloss 3\nImg/sec: 1,100\n", unit="images/s")
    assert found == {"value": 600, "unit": "images/s", "samples": [100, 1100]}


@pytest.mark.parametrize(
    ("take", "value"), [("last", 2), ("first", 4), ("min", 1), ("max", 4), ("sum", 7), ("mean", 7 / 3)]
)
def test_take_says_which_number_is_the_value(step: Path, take: str, value: float) -> None:
    found = read(step, RATE, b"Img/sec: 4\nImg/sec: 1\nImg/sec: 2\n", take=take)
    assert found["value"] == pytest.approx(value)
    assert found["samples"] == [4, 1, 2]


def test_the_first_numbers_may_be_skipped(step: Path) -> None:
    assert read(step, RATE, b"Img/sec: 4\nImg/sec: 1\nImg/sec: 2\n", skip=2)["samples"] == [2]


def test_stderr_is_searched_too(step: Path) -> None:
    (step / "errors.txt").write_bytes(b"\r50%  [3.5it/s]\r100% [4.5it/s]")
    assert read(step, r"\[([0-9.]+)it/s\]", b"", take="last")["value"] == 4.5


@pytest.mark.parametrize("keys", [{"take": "last"}, {"take": "first"}, {"skip": 1}])
def test_options_that_depend_on_order_are_refused_if_both_streams_match(step: Path, keys: dict[str, Any]) -> None:
    (step / "errors.txt").write_bytes(b"Img/sec: 4\n")
    with pytest.raises(MetricMissing, match=r"matches stdout and stderr, and .* requires the order"):
        read(step, RATE, b"Img/sec: 5\nImg/sec: 6\n", **keys)
    assert read(step, RATE, take="max")["value"] == 6


TIMES = [1.0, 1.0, 1.0, 10.0]


def test_a_rate_of_printed_times_is_that_of_their_mean(step: Path) -> None:
    printed = b"".join(b"step took %.1f s\n" % seconds for seconds in TIMES)
    found = read(step, "took ([0-9.]+) s", printed, unit="step/s", printed="s/step")
    assert found["value"] == pytest.approx(4 / 13)
    assert found["samples"] == [1, 1, 1, 0.1]


@given(
    st.lists(st.floats(0.01, 1e4), min_size=1, max_size=20),
    st.sampled_from([("ms/step", "step/s"), ("s/step", "step/h"), ("images/s", "ms/image"), ("ms", "s")]),
)
def test_the_mean_is_that_of_what_was_printed_in_any_unit(values: list[float], units: tuple[str, str]) -> None:
    printed, unit = units
    with TemporaryDirectory() as directory:
        step = Path(directory)
        (step / "errors.txt").write_bytes(b"")
        text = "".join(f"x={value!r}\n" for value in values).encode()
        found = read(step, "x=(.*)", text, unit=unit, printed=printed)
    assert found["value"] == pytest.approx(convert(sum(values) / len(values), printed, unit))


def test_a_unit_that_is_printed_is_converted(step: Path) -> None:
    printed = b"Job 0 finished: reduce, took 1.5 s\nJob 1 finished: reduce, took 500 ms\n"
    assert read(step, r"took ([0-9.]+) (?P<unit>m?s)", printed, unit="s")["samples"] == [1.5, 0.5]


def test_a_progress_bar_that_turns_its_rate_around_is_read(step: Path) -> None:
    printed = b"\r 1/9 [00:02<00:16,  2.00s/it]\r 9/9 [00:04<00:00,  4.00it/s]\n"
    found = read(step, r", +([0-9.]+)(?P<unit>s/it|it/s)\]", printed, unit="it/s")
    assert found["samples"] == [0.5, 4]
    assert found["value"] == pytest.approx(2 / (2 + 0.25))
    found = read(step, r", +([0-9.]+)(?P<unit>s/it|it/s)\]", printed, unit="s/it")
    assert found["value"] == pytest.approx((2 + 0.25) / 2)


def test_named_groups_are_several_metrics(step: Path) -> None:
    (step / "output.txt").write_bytes(b"Performance:      446.590        0.054\n")
    one = Pattern(pattern=r"^Performance: +(?P<ns_per_day>\S+) +(?P<hours_per_ns>\S+)")
    promised = {"ns_per_day": Metric(unit="ns/day"), "hours_per_ns": Metric(unit="hours/ns")}
    found = read_patterns([one], promised, step, ranks=1)
    assert {name: metric["value"] for name, metric in found.items()} == {"ns_per_day": 446.59, "hours_per_ns": 0.054}


def test_what_each_rank_does_is_multiplied(step: Path) -> None:
    assert read(step, RATE, b"Img/sec: 10\n", ranks=4, per="rank")["value"] == 40


def test_ranks_are_read_one_by_one_and_reduced(step: Path) -> None:
    for rank in range(3):
        (step / "ranks" / f"{rank}.out").write_text(f"Img/sec: {rank}\nImg/sec: {10 + rank}\n")
        (step / "ranks" / f"{rank}.err").write_text("")
    one = Pattern(pattern=RATE, metric="m", take="last", ranks="each", reduce="sum")
    found = read_patterns([one], {"m": Metric(unit="x")}, step, ranks=3)["m"]
    assert found == {"value": 33, "unit": "x", "samples": [10, 11, 12], "ranks": [0, 1, 2]}
    alone = Pattern(pattern=RATE, metric="m", ranks=0)
    assert read_patterns([alone], {"m": Metric(unit="x")}, step, ranks=3)["m"]["samples"] == [0, 10]


def test_a_rank_without_a_match_is_named(step: Path) -> None:
    for rank in range(3):
        (step / "ranks" / f"{rank}.out").write_text("Img/sec: 1\n" if rank != 1 else "")
        (step / "ranks" / f"{rank}.err").write_text("")
    with pytest.raises(MetricMissing, match=r"in the output of 1 of 3 ranks \(1\)"):
        read_patterns([Pattern(pattern=RATE, metric="m", ranks="each")], {"m": Metric(unit="x")}, step, ranks=3)


def test_patterns_that_match_nothing_are_named_with_the_last_lines(step: Path) -> None:
    (step / "output.txt").write_bytes(b"img/sec: 3\nend\n")
    both = [Pattern(pattern=RATE, metric="m"), Pattern(pattern="z(a)", metric="n")]
    with pytest.raises(MetricMissing) as caught:
        read_patterns(both, {"m": Metric(unit="x"), "n": Metric(unit="x")}, step, ranks=1)
    assert caught.value.message.splitlines() == [
        f"metric m: pattern `{RATE}` matches nothing",
        "metric n: pattern `z(a)` matches nothing",
        f"last lines of {step / 'output.txt'}:",
        "  img/sec: 3",
        "  end",
    ]


def test_a_metric_that_is_not_required_may_be_missing(step: Path) -> None:
    (step / "output.txt").write_bytes(b"")
    promised = {"m": Metric(unit="x", required=False)}
    assert read_patterns([Pattern(pattern=RATE, metric="m")], promised, step, ranks=1) == {}


def test_a_group_that_holds_no_number_is_an_error(step: Path) -> None:
    with pytest.raises(MetricMissing, match=r"matched '1\.2\.3': not a number"):
        read(step, RATE, b"Img/sec: 1.2.3\n")
    with pytest.raises(MetricMissing, match="matched 'nan': not a finite number"):
        read(step, r"loss (\S+)", b"loss nan\n")


def test_a_missing_output_is_an_error(step: Path) -> None:
    with pytest.raises(MetricMissing, match="cannot read the output of the program"):
        read(step, RATE)


def test_lines_are_matched_one_by_one(step: Path) -> None:
    assert read(step, r"^(\d+)$", b"x 1\n2\n3 y\n4\r\n5")["samples"] == [2, 4, 5]
    with pytest.raises(MetricMissing):
        read(step, r"a\s+(\d)", b"a\n1\n")
    with pytest.raises(MetricMissing):
        read(step, r"a[^b](\d)", b"a\n1\n")


# Hostile output.


def test_a_match_across_the_pieces_of_a_long_line_counts_once(step: Path) -> None:
    unit = b"yyyy Img/sec: 7 "
    found = read(step, RATE, unit * (5 * BLOCK // len(unit)) + b"\nImg/sec: 8", take="sum")
    assert found["value"] == 7 * (5 * BLOCK // len(unit)) + 8


@pytest.mark.parametrize("offset", range(-12, 3))
def test_a_match_at_the_end_of_a_piece_is_whole(step: Path, offset: int) -> None:
    printed = b"y" * (2 * BLOCK + offset) + b"Img/sec: 123.5" + b"y" * BLOCK
    assert read(step, RATE, printed)["samples"] == [123.5]


def test_a_part_of_a_long_line_is_not_a_line(step: Path) -> None:
    with pytest.raises(MetricMissing):
        read(step, r"^(\d)", b"y" + b"1" * 4 * BLOCK)


def test_a_hundred_megabytes_on_one_line_are_read_in_little_memory(step: Path) -> None:
    with (step / "output.txt").open("wb") as out:
        for _ in range(100):
            out.write(b"y" * 1_000_000)
        out.write(b"Img/sec: 12.5")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read(step, RATE)["value"] == 12.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80_000  # KiB; RE2's automata take 32 MiB


@pytest.mark.parametrize("pattern", ["(?:a+a+)+b(.)", "^(?:a|aa)+$z(.)", "(?:a*)*b(.)", "(?:.*a){20}b(.)"])
def test_a_pattern_that_backtracks_elsewhere_takes_linear_time(step: Path, pattern: str) -> None:
    with pytest.raises(MetricMissing, match="matches nothing"):
        read(step, pattern, b"a" * 1_000_000)


@pytest.mark.parametrize("seed", range(5))
def test_binary_data_is_searched(step: Path, seed: int) -> None:
    noise = random.Random(seed).randbytes(3 * BLOCK).replace(b"Img", b"img")
    assert read(step, RATE, noise + b"\nImg/sec: 5\n" + noise)["samples"] == [5]


def test_of_very_many_numbers_some_samples_are_kept(step: Path) -> None:
    lines = 3 * MOST_SAMPLES
    found = read(step, r"^(\d+)", b"".join(b"%d\n" % line for line in range(lines)))
    assert len(found["samples"]) <= MOST_SAMPLES
    assert found["samples"] == [4 * index for index in range(len(found["samples"]))]
    assert found["value"] == pytest.approx((lines - 1) / 2)


def test_a_search_without_end_is_given_up(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "LIMIT", -1.0)
    with pytest.raises(MetricMissing, match="took more than"):
        read(step, RATE, b"Img/sec: 5\n")
