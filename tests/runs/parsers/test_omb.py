"""What OMB and OMB-Py print, from 5.9 on: whole tables become metrics, and everything else is refused.

The samples of 7.4 were printed by OMB 7.4 on two ranks of MPICH; the others are written after the formats of their
versions.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import MetricMissing
from hidl_cli.runs.parsers.omb import benchmark_of, parse

SAMPLES = Path(__file__).parent / "samples"

TIMES = ["latency", "latency_min", "latency_max"]
OVERLAP = ["overall", "compute", "pure_communication", "overlap"]
PARTS = ["collective_init", "test", "wait"]
READ = {
    "5.9-latency": ["latency"],
    "5.9-cuda-latency": ["latency"],
    "5.9-allreduce-f": TIMES,
    "5.9-mbw_mr": ["bandwidth", "message_rate"],
    "5.9-ibarrier": OVERLAP,
    "6.1-put_latency": ["latency"],
    "6.2-bcast-c": ["latency"],
    "6.2-bw-z": ["bandwidth", "bandwidth_p50", "bandwidth_p90"],
    "7.4-latency": ["latency"],
    "7.4-latency-c-z": ["latency", "latency_p50", "latency_p90", "latency_p99"],
    "7.4-latency-D": ["latency"],
    "7.4-latency_mt": ["latency"],
    "7.4-bw-z": ["bandwidth", "bandwidth_p50", "bandwidth_p90", "bandwidth_p99"],
    "7.4-mbw_mr": ["bandwidth", "message_rate"],
    "7.4-mbw_mr-R0": ["bandwidth"],
    "7.4-allreduce-f-c-z": [*TIMES, "latency_p50", "latency_p90", "latency_p99"],
    "7.4-allreduce-T-all": ["latency", "latency_mpi_int", "latency_mpi_float"],
    "7.4-barrier": ["latency"],
    "7.4-barrier-f": TIMES,
    "7.4-ibarrier": OVERLAP,
    "7.4-iallreduce": OVERLAP,
    "7.4-iallreduce-f-c": [
        *OVERLAP[:2],
        *PARTS,
        "pure_communication",
        "pure_communication_min",
        "pure_communication_max",
        "overlap",
    ],
    "7.4-put_bw": ["bandwidth"],
    "7.4-fop_latency": ["latency"],
    "7.4-init": ["ranks", "init_min", "init_max", "init_avg"],
    "7.4-hello": ["ranks"],
    "ombpy-latency": ["latency"],
    "ombpy-bw": ["bandwidth"],
    "ombpy-barrier": ["latency"],
}


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text()


def table(
    *rows: str, header: str = "# Size       Avg Latency(us)", title: str = "# OSU MPI Allreduce Latency Test v7.4"
) -> str:
    return "\n".join(("", title, header, *rows)) + "\n"


@pytest.mark.parametrize("name", READ)
def test_yields_a_metric_for_each_column_of_values(name: str) -> None:
    assert list(parse(sample(name))) == READ[name]


def test_every_sample_is_read_or_refused_by_a_test() -> None:
    assert {path.stem for path in SAMPLES.iterdir() if path.is_file()} == {*READ, "7.4-mbw_mr-V"}


def test_samples_belong_to_message_sizes() -> None:
    assert parse(sample("5.9-latency"))["latency"] == {
        "value": 1.10,
        "unit": "us",
        "samples": [1.05, 1.09, 1.08, 1.11, 1.10],
        "sizes": [0, 1, 2, 4, 8],
    }


def test_a_barrier_has_no_sizes() -> None:
    assert parse(sample("7.4-barrier"))["latency"] == {"value": 0.51, "unit": "us", "samples": [0.51]}


@pytest.mark.parametrize(
    ("name", "metric", "value"),
    [
        ("5.9-latency", "latency", 1.10),  # at 8 B
        ("6.2-bcast-c", "latency", 0.61),  # at the smallest size, for want of 8 B
        ("7.4-bw-z", "bandwidth", 7460.50),  # at the largest
        ("7.4-mbw_mr", "message_rate", 2746604.29),  # at 8 B
        ("7.4-allreduce-f-c-z", "latency_max", 0.57),
        ("7.4-init", "init_avg", 25),
    ],
)
def test_the_value_is_the_one_that_history_uses(name: str, metric: str, value: float) -> None:
    assert parse(sample(name))[metric]["value"] == value


@pytest.mark.parametrize(
    ("metric", "unit"),
    [("bandwidth", "MB/s"), ("message_rate", "messages/s")],
)
def test_rates_have_units_of_their_own(metric: str, unit: str) -> None:
    assert parse(sample("7.4-mbw_mr"))[metric]["unit"] == unit


def test_columns_are_known_by_title_where_they_stand() -> None:
    moved = table(
        "8    Pass   3.00   1.00   2.00",
        header="# Size   Validation   Max Latency(us)   Min Latency(us)   Avg Latency(us)",
    )
    assert {name: found["value"] for name, found in parse(moved).items()} == {
        "latency_max": 3.0,
        "latency_min": 1.0,
        "latency": 2.0,
    }


def test_another_unit_in_the_title_is_converted() -> None:
    assert parse(table("8    1.50", header="# Size       Avg Latency(ms)"))["latency"]["value"] == 1500


def test_several_benchmarks_one_after_another_are_distinguished_by_name() -> None:
    names = ("7.4-put_bw", "7.4-barrier-f", "6.1-put_latency", "7.4-latency")
    assert list(parse("".join(sample(name) for name in names))) == [
        "put_bw_bandwidth",
        "barrier_latency",
        "barrier_latency_min",
        "barrier_latency_max",
        "put_latency_latency",
        "latency_latency",
    ]


def test_a_benchmark_that_ran_twice_has_numbered_metrics() -> None:
    assert list(parse(sample("5.9-latency") * 2)) == ["latency", "latency_2"]


@pytest.mark.parametrize(
    "noise",
    [
        "[node1:4711] 1 more process has sent help message help-mpi-btl.txt",
        "srun: warning: can't honor --ntasks-per-node",
        "2026-11-21 13:00:00 INFO starting",
        "3: hello from rank 3",
        "# Dimensions",
        "",
        "\tat main",
    ],
)
def test_noise_between_rows_is_passed_over(noise: str) -> None:
    lines = sample("7.4-allreduce-f-c-z").splitlines()
    noisy = "\n".join(part for line in lines for part in (line, noise)) + "\n"
    assert parse(noisy) == parse(sample("7.4-allreduce-f-c-z"))


# -- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "Hello, world\n",
        "8                       0.51\n16                      0.52\n",  # rows of what?
        "Total img/sec on 2 GPU(s): 30.1 +-0.2\n",
        "# Epoch    Loss\n1    0.5\n",
        '{"latency": 1.0}\n',
    ],
)
def test_what_is_not_a_table_is_refused(text: str) -> None:
    with pytest.raises(MetricMissing, match="no table"):
        parse(text)


@pytest.mark.parametrize("name", [name for name in READ if name not in ("7.4-init", "7.4-hello")])
def test_a_header_without_rows_is_refused(name: str) -> None:
    lines = sample(name).splitlines(keepends=True)
    header = max(n for n, line in enumerate(lines) if "(us)" in line or "MB/s" in line)
    with pytest.raises(MetricMissing, match="no row"):
        parse("".join(lines[: header + 1]))


@given(data=st.data(), name=st.sampled_from([name for name in READ if name not in ("7.4-init", "7.4-hello")]))
def test_a_table_cut_within_a_row_is_refused(data: st.DataObject, name: str) -> None:
    whole = sample(name)
    start = whole.rindex("\n", 0, -1) + 1
    cut = data.draw(st.integers(start + len(whole[start:]) - len(whole[start:].lstrip()) + 1, len(whole) - 1))
    with pytest.raises(MetricMissing):
        parse(whole[:cut])


@pytest.mark.parametrize(
    "row", ["32", "32      ", "32                      0.5WARN", "32     0.51    0.52", "32   Pass"]
)
def test_a_damaged_row_is_refused_and_reported(row: str) -> None:
    with pytest.raises(MetricMissing, match=r"osu_allreduce .* '32"):
        parse(table("16                      0.50", row, "64                      0.53"))


def test_a_row_that_is_not_there_is_refused_and_reported() -> None:
    with pytest.raises(MetricMissing, match="osu_allreduce lacks a row: size 64 follows size 16"):
        parse(table("8      0.50", "16      0.50", "64      0.53"))


@pytest.mark.parametrize("after", ["", "7.4-bw-z", "7.4-init"])
def test_a_title_without_a_table_is_refused(after: str) -> None:
    with pytest.raises(MetricMissing, match="osu_latency printed its title but no table"):
        parse("# OSU MPI Latency Test v7.4\n# Datatype: MPI_CHAR.\n" + (sample(after) if after else ""))


def test_every_table_of_several_must_be_whole() -> None:
    with pytest.raises(MetricMissing, match="osu_latency has a header but no rows"):
        parse("# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n" + sample("7.4-bw-z"))


@pytest.mark.parametrize("value", ["nan", "-nan", "inf"])
def test_a_value_that_is_not_finite_is_refused_with_its_size(value: str) -> None:
    with pytest.raises(MetricMissing, match=f"osu_allreduce printed {value} as latency at 16 bytes"):
        parse(table("8      0.50", f"16      {value}"))


def test_wrong_data_is_a_failure_that_names_benchmark_and_size() -> None:
    header = "# Size       Avg Latency(us)        Validation"
    with pytest.raises(MetricMissing, match="osu_allreduce received wrong data at 16 bytes"):
        parse(table("8      0.50    Pass", "16      0.50   Fail", "32     0.51   Fail", header=header))


def test_wrong_data_is_a_failure_without_a_column_too() -> None:
    printed = "DATA VALIDATION ERROR: osu_latency exited with status 1 on message size 16.\n"
    with pytest.raises(MetricMissing, match="osu_latency received wrong data in messages of 16 bytes"):
        parse(table("8      0.50", "16      0.50") + printed)


def test_a_matrix_of_window_sizes_is_refused_with_the_option_to_leave_out() -> None:
    with pytest.raises(MetricMissing, match="-V") as refused:
        parse(sample("7.4-mbw_mr-V"))
    assert refused.value.hint == "omit -V"


@given(st.text())
def test_no_text_makes_it_fail_in_another_way(text: str) -> None:
    with suppress(MetricMissing):
        parse(f"# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)\n{text}")


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "benchmark"),
    [
        ("OSU MPI Latency", "latency"),
        ("OSU MPI-CUDA Latency", "latency"),
        ("OSU MPI-CUDA MANAGED Bandwidth", "bw"),
        ("OMB Python MPI Allreduce", "allreduce"),
        ("OMB-Py MPI Bi-Directional Bandwidth", "bibw"),
        ("OSU MPI All-to-Allv Personalized Exchange Latency", "alltoallv"),
        ("OSU MPI Non-blocking All-to-All Latency", "ialltoall"),
        ("OSU MPI Non-Blocking Broadcast Latency", "ibcast"),
        ("OSU MPI Broadcast Persistent Latency", "bcast_persistent"),
        ("OSU MPI Latency Persistent", "latency_persistent"),
        ("OSU MPI Bandwidth Persistent", "bw_persistent"),
        ("OSU MPI Non-blocking Neighborhood Alltoallw Latency", "ineighbor_alltoallw"),
        ("OSU MPI Reduce_scatter_block Latency", "reduce_scatter_block"),
        ("OSU MPI_Put-CUDA Bi-directional Bandwidth", "put_bibw"),
        ("OSU MPI_Get_accumulate latency", "get_acc_latency"),
        ("OSU NCCL Allreduce Latency", "nccl_allreduce"),
    ],
)
def test_a_title_reports_the_program(title: str, benchmark: str) -> None:
    assert benchmark_of(title) == benchmark
