"""The text of OMB 7.4, character by character: what OMB printed is printed again from its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.omb import output, registry
from hidl_workloads.omb.commandline import parse
from hidl_workloads.omb.options import Options
from hidl_workloads.omb.output import Row, Table

SAMPLES = Path(__file__).parents[2] / "runs" / "parsers" / "samples"

PRINTED = [
    ("latency", "latency", ""),
    ("latency-c-z", "latency", "-c -z"),
    ("latency_mt", "latency_mt", ""),
    ("bw-z", "bw", "-z"),
    ("mbw_mr", "mbw_mr", ""),
    ("mbw_mr-R0", "mbw_mr", "-R 0"),
    ("mbw_mr-V", "mbw_mr", "-V"),
    ("put_bw", "put_bw", ""),
    ("fop_latency", "fop_latency", ""),
]


@pytest.mark.parametrize(("sample", "name", "words"), PRINTED, ids=[sample for sample, *_ in PRINTED])
def test_the_text_is_that_of_omb(sample: str, name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = (SAMPLES / f"7.4-{sample}.txt").read_text(encoding="utf-8")
    benchmark = registry.find(name)
    options = parse(words.split(), benchmark.options, benchmark.defaults)
    benchmark = benchmark.variant(benchmark, options) if benchmark.variant else benchmark
    table = Table(benchmark, options, "MPI_CHAR")

    output.say(benchmark.opening(benchmark, options, 2) + "# Datatype: MPI_CHAR.")
    output.print_header(table)
    for line in printed.partition("# Message Rate Profile")[0].splitlines():
        if re.match(r"\d", line):
            output.print_row(table, row_of(line, table))

    assert capsys.readouterr().out == printed.partition("\n# Message Rate Profile")[0]


def row_of(line: str, table: Table) -> Row:
    size, *words = line.split()
    figures = [float(word) for word in words if word not in ("Pass", "Fail")]
    shown = len(figures) - len(table.options.tail_lat)
    values, tail = figures[:shown], figures[shown:]
    values += [0.0] * (len(table.benchmark.columns) - shown)  # columns that are not printed
    return Row(int(size), values, int("Fail" in words) if table.options.validation else None, tail)


def test_varied_windows_end_with_the_message_rates_as_in_omb() -> None:
    printed = (SAMPLES / "7.4-mbw_mr-V.txt").read_text(encoding="utf-8").splitlines()
    middle = printed.index("# Message Rate Profile")
    rates = [line for line in printed[middle:] if line[:1].isdigit()]
    rows = [(int(size), [float(rate) * int(size) / 1e6 for rate in found]) for size, *found in map(str.split, rates)]
    benchmark = registry.find("mbw_mr")
    varied = benchmark.variant(benchmark, Options(vary_window=True))
    assert varied.closing(rows).splitlines() == printed[middle - 1 :]


def test_wrong_data_is_reported_in_the_words_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("latency", "acc_latency"):
        output.print_row(Table(registry.find(name), Options(validation=True), "MPI_CHAR"), Row(8, (1.0,), 3))
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["Fail", "failed"]


@given(st.lists(st.floats(0, 1e9), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(samples: list[float], percentile: int) -> None:
    (found,) = output.percentiles(samples, [percentile])
    at_most = sum(sample <= found for sample in samples)
    assert found in samples
    assert at_most >= int(len(samples) * percentile / 100)


def tables(name: str, *rows: Row, **options: object) -> list[Table]:
    return [Table(registry.find(name), Options(**options), "MPI_CHAR", list(rows))]


@pytest.mark.parametrize(("sizes", "at"), [((1, 4, 8, 16), 8), ((16, 32), 16)])
def test_history_uses_latency_at_8_bytes_or_the_smallest_size(sizes: tuple[int, ...], at: int) -> None:
    (metric,) = output.as_metrics(tables("latency", *(Row(size, (float(size),)) for size in sizes)))
    assert (metric.name, metric.value, metric.unit, metric.sizes) == ("latency", at, "us", list(sizes))


def test_history_uses_bandwidth_at_the_largest_size() -> None:
    metric, rate = output.as_metrics(tables("mbw_mr", Row(8, (1.0, 5.0)), Row(64, (4.0, 3.0))))
    assert [(found.name, found.value, found.unit) for found in (metric, rate)] == [
        ("bandwidth", 4.0, "MB/s"),
        ("message_rate", 5.0, "messages/s"),
    ]


def test_percentiles_are_metrics() -> None:
    found = output.as_metrics(tables("latency", Row(8, (1.0,), None, (1.1, 1.2)), tail_lat=(50, 99)))
    assert [metric.name for metric in found] == ["latency", "latency_p50", "latency_p99"]


def test_a_second_datatype_has_metrics_of_its_own() -> None:
    first, second = tables("latency", Row(8, (1.0,))), tables("latency", Row(8, (2.0,)))
    second[0].datatype = "MPI_INT"
    assert [metric.name for metric in output.as_metrics(first + second)] == ["latency", "latency_mpi_int"]


def test_json_has_the_same_figures() -> None:
    document = output.as_json([tables("latency", Row(8, (1.25,), 0), validation=True)])
    assert document["benchmarks"][0]["tables"] == [
        {"datatype": "MPI_CHAR", "rows": [{"size": 8, "Avg Latency(us)": 1.25, "Validation": "Pass"}]}
    ]
