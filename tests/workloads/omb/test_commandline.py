"""OMB's options: what its command lines mean, and what is said of those that mean nothing."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.omb import registry
from hidl_workloads.omb.commandline import OPTIONS, parse
from hidl_workloads.omb.options import Options, UsageError

LETTERS = "".join(option.letter for option in OPTIONS)


def read(*words: str) -> Options:
    return parse(words, LETTERS, Options())


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (["-m", "8"], [1, 2, 4, 8]),
        (["-m", "4:16"], [4, 8, 16]),
        (["-m4:16"], [4, 8, 16]),
        (["-m", "2097152:"], [2097152, 4194304]),
        (["--message-size", "3:7"], [3, 6]),
        (["--min_size=4", "--max_size=8"], [4, 8]),
    ],
)
def test_sizes_are_given_as_in_omb(words: list[str], sizes: list[int]) -> None:
    assert list(read(*words).sizes()) == sizes


@pytest.mark.parametrize(
    ("kind", "small", "large"),
    [
        ("latency", (10000, 100), (1000, 10)),
        ("bandwidth", (100, 10), (20, 2)),
        ("collective", (1000, 100), (100, 10)),
    ],
)
def test_without_i_and_x_the_counts_are_those_of_omb(kind: str, small: tuple[int, int], large: tuple[int, int]) -> None:
    assert (Options().counts(kind, 8192), Options().counts(kind, 8193)) == (small, large)


def test_i_and_x_hold_for_all_sizes() -> None:
    assert read("-i", "7", "-x0").counts("latency", 1 << 20) == (7, 0)


def test_the_words_of_a_workload_can_ask_for_the_counts_of_omb() -> None:
    assert read("--iterations=0", "--warmup=-1") == Options()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([], "numpy"),
        (["-d", "cuda"], "cupy"),
        (["D", "H"], "cupy"),
        (["--places=H-H"], "numpy"),
        (["--places=H-D", "--buffer=torch"], "torch"),
    ],
)
def test_buffers_on_a_device_are_cupys_unless_another_kind_is_given(words: list[str], kind: str) -> None:
    assert read(*words).buffer == kind


def test_switches_are_joined_as_getopt_joins_them() -> None:
    options = read("-fVc")
    assert (options.full, options.vary_window, options.validation) == (True, True, True)


@pytest.mark.parametrize(
    ("words", "percentiles"),
    [(["-z"], (50, 90, 99)), (["-z99,1"], (99, 1)), (["--tail-lat=90"], (90,)), (["--tail_lat=none"], ())],
)
def test_percentiles_stand_beside_z(words: list[str], percentiles: tuple[int, ...]) -> None:
    assert read(*words).tail_lat == percentiles


def test_z_takes_no_word_of_its_own() -> None:
    assert read("-z", "-m", "4").tail_lat == (50, 90, 99)


def test_all_types_are_three() -> None:
    assert read("-T", "all").types == ("mpi_char", "mpi_int", "mpi_float")


def test_threads_are_senders_and_receivers() -> None:
    assert (read("-t", "4").threads, read("-t4:6").threads) == ((1, 4), (4, 6))


def test_a_root_is_fixed_or_rotates() -> None:
    assert (read("-k", "fixed:3").root_rank, read("-k", "rotate").root_rank) == (3, None)


def test_two_letters_after_the_options_say_where_buffers_lie() -> None:
    assert read("-m", "4", "D", "H").places == ("D", "H")
    assert read("--places=D-H").places == ("D", "H")
    assert read("--places=by-buffer").places == Options().places
    with pytest.raises(UsageError, match="--places: 'D-X' is not D-D, D-H, H-D, H-H or by-buffer"):
        read("--places=D-X")


def test_every_fault_is_reported() -> None:
    with pytest.raises(UsageError) as error:
        read("-q", "-i", "none", "--no-such", "-W", "-5", "-u", "11", "X", "-R")
    assert len(error.value.faults) == 7


def test_what_another_benchmark_has_is_refused_and_in_a_suite_passed_over() -> None:
    with pytest.raises(UsageError, match="does not support -W"):
        parse(["-W", "4"], "m", Options())
    assert parse(["-W", "4"], "m", Options(), others=LETTERS) == Options()


def test_a_wrong_argument_is_a_fault_in_a_suite_too() -> None:
    with pytest.raises(UsageError, match="-W: 'x' is not a whole number"):
        parse(["-W", "x"], "m", Options(), others=LETTERS)


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_words_are_options_or_a_usage_error(words: list[str]) -> None:
    with suppress(UsageError):
        assert isinstance(parse(words, LETTERS, Options()), Options)


def test_a_name_that_is_nearly_right_is_reported() -> None:
    with pytest.raises(UsageError, match="multi_lat"):
        registry.find("osu_multilat")


def test_each_benchmark_takes_options_that_there_are() -> None:
    assert {letter for benchmark in registry.benchmarks().values() for letter in benchmark.options} <= set(LETTERS)
