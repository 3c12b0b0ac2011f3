"""What the applications hold their results against, and that a wrong one is found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.arguments import parse
from hidl_workloads.dask_apps import dataframe_sum, merge, svd, transpose
from hidl_workloads.dask_apps.figures import ClientMeasurements, figures
from hidl_workloads.dask_apps.job import WrongResult, agree
from hidl_workloads.dask_apps.transfers import gather
from hidl_workloads.parameters import Dask

PROGRAMS: Mapping[str, type[Dask]] = {
    "dask-transpose": transpose.Parameters,
    "dask-merge": merge.Parameters,
    "dask-svd": svd.Parameters,
    "dask-dataframe-sum": dataframe_sum.Parameters,
}


@given(st.integers(2, 90))
def test_the_known_sum_is_that_of_the_matrix_and_its_transpose(size: int) -> None:
    x = transpose.block(slice(0, size), slice(0, size), size, "cpu")
    assert transpose.known_sum(size) == (x + x.T).sum()


@given(st.integers(1, 60), st.integers(1, 12))
def test_the_known_singular_values_are_those_of_the_matrix(rows: int, columns: int) -> None:
    columns = min(rows, columns)
    values = np.linalg.svd(svd.block(0, rows, rows, columns, "cpu"), compute_uv=False)
    np.testing.assert_allclose(values, np.arange(columns, 0, -1), atol=1e-9)


@given(st.integers(1, 5), st.integers(1, 40), st.floats(0, 1))
def test_as_many_rows_match_as_the_parameters_say(partitions: int, rows: int, part: float) -> None:
    parameters = merge.Parameters(chunk_size=rows, frac_match=part)
    keys = _keys(partitions, parameters)
    matching = np.intersect1d(*keys)
    assert [len(np.unique(each)) for each in keys] == [partitions * rows] * 2
    np.testing.assert_array_equal(matching, np.arange(partitions * parameters.matches))


def _keys(partitions: int, parameters: merge.Parameters) -> tuple[np.ndarray, np.ndarray]:
    """The keys of both frames; pandas is not needed to look at them."""
    numbers = range(partitions)
    return (
        np.concatenate([merge.left_keys(number, parameters) for number in numbers]),
        np.concatenate([merge.right_keys(number, partitions, parameters) for number in numbers]),
    )


@pytest.mark.parametrize("found", [2.0, float("nan"), 1.0000001])
def test_a_wrong_result_is_reported_with_both_numbers(found: float) -> None:
    with pytest.raises(WrongResult, match=r"the result is wrong: the sum is .*, but must be 1.0"):
        agree("the sum", found, 1.0)


def test_small_transfers_count_for_the_bytes_only() -> None:
    transfers = gather({"a": [(100, 0.001), (4_000_000, 0.002)], "b": [(2_000_000, 0.002)]}, ignore=1_000_000)
    assert (transfers.bytes, transfers.bandwidth) == (6_000_100, 1.5e9)


def test_throughput_is_of_the_data_worked_on_at_the_median_time() -> None:
    none = gather({}, ignore=0)
    measured = ClientMeasurements((1.0, 4.0, 2.0), (none, none, none), 3_000_000_000, None, {})
    found = {metric.name: metric for metric in figures(measured, workers=2)}
    assert (found["throughput"].value, found["throughput"].samples) == (1.5, [3.0, 0.75, 1.5])
    assert "transfer_bandwidth" not in found
    assert "sent_by_mpi" not in found


@pytest.mark.parametrize(
    ("name", "words"),
    [("dask-svd", ["--columns=30000"]), ("dask-merge", ["--frac_match=1.5"]), ("dask-transpose", ["--size=nan"])],
)
def test_values_that_cannot_be_meant_are_refused(name: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0].removeprefix("--").partition("=")[0]):
        parse(PROGRAMS[name], words)
