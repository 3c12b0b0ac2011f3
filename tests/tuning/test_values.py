"""Values of variables: valid, invalid, and as exported."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.inputs.fields import Scalar
from hidl_cli.tuning.catalogue import Variable, all_variables, variable
from hidl_cli.tuning.values import InvalidValue, format_expectation, format_plain, format_value
from tests.waiting import patience


def known(name: str, family: str = "mvapich2-gdr") -> Variable:
    found = variable(name, family)  # type: ignore[arg-type]
    assert found is not None
    return found


SWITCH = known("MV2_USE_CUDA")
SIZE = known("MV2_VBUF_TOTAL_SIZE")
SIGNED = known("MV2_IBA_EAGER_THRESHOLD")
WHOLE = known("MV2_NUM_HCAS")
LIMITED = known("MV2_USE_CORE_DIRECT")
WORDS = known("MV2_CPU_BINDING_POLICY")
PORTS = known("MV2_PORT_RANGE")
PATH = known("MV2_GPUDIRECT_GDRCOPY_LIB")
ALGORITHM = known("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "mvapich-plus")


@pytest.mark.parametrize(
    ("of", "given_value", "text"),
    [
        (SWITCH, 1, "1"),
        (SWITCH, "0", "0"),
        (SWITCH, True, "1"),
        (SWITCH, "Yes", "1"),
        (SWITCH, "off", "0"),
        (WHOLE, 2, "2"),
        (WHOLE, " 2 ", "2"),
        (WHOLE, "0x10", "16"),
        (WHOLE, "-1", "-1"),
        (LIMITED, 3, "3"),
        (SIZE, 4096, "4096"),
        (SIZE, "64K", "65536"),
        (SIZE, "1m", "1048576"),
        (SIGNED, -1, "-1"),
        (WORDS, "hybrid", "hybrid"),
        (WORDS, "SCATTER", "scatter"),
        (PORTS, "5000:6000", "5000:6000"),
        (PORTS, 5000, "5000:5000"),
        (PATH, "/opt/gdr copy/libgdrapi.so", "/opt/gdr copy/libgdrapi.so"),
        (ALGORITHM, "osu_gpu_direct", "osu_gpu_direct"),
    ],
)
def test_valid_values(of: Variable, given_value: Scalar, text: str) -> None:
    assert format_value(of, given_value) == text


@pytest.mark.parametrize(
    ("of", "given_value", "message", "expected"),
    [
        (SWITCH, "maybe", "`maybe` is not a switch", "0 or 1"),
        (SWITCH, 2, "`2` is not a switch", "0 or 1"),
        (SWITCH, "", "`` is not a switch", "0 or 1"),
        (WHOLE, "two", "`two` is not a whole number", "a whole number"),
        (WHOLE, 1.5, "`1.5` is not a whole number", "a whole number"),
        (WHOLE, True, "`true` is not a whole number", "a whole number"),
        (WHOLE, 2**31, "2147483648 exceeds 2147483647, the library's largest number", "at most 2147483647"),
        (LIMITED, 4, "4 exceeds 3", "a whole number from 0 to 3"),
        (LIMITED, -1, "-1 is below 0", "a whole number from 0 to 3"),
        (SIZE, "64X", "`64X` is not a size", "a number of bytes, with K, M or G for powers of 1024"),
        (SIZE, "-1", "-1 is below 0", "a number of bytes, with K, M or G for powers of 1024"),
        (SIZE, "2G", "2147483648 exceeds 2147483647, the library's largest number", "at most 2147483647"),
        (WORDS, "spread", "`spread` is not a known word", "one of: bunch, scatter, hybrid"),
        (PORTS, "9:5", "`9:5` is not a range of ports", "two port numbers, low:high"),
        (PORTS, "1:99999", "`1:99999` is not a range of ports", "two port numbers, low:high"),
        (PATH, "", "the path is empty", "a path"),
        (PATH, "/a\n/b", "the value contains a line break", "a value on one line"),
        (known("MV2_COMM_WORLD_RANK"), 0, "the launcher sets it", "no value: remove the line"),
    ],
)
def test_invalid_values(of: Variable, given_value: Scalar, message: str, expected: str) -> None:
    with pytest.raises(InvalidValue) as unfit:
        format_value(of, given_value)

    assert (unfit.value.message, unfit.value.expected) == (message, expected)


def test_a_misspelled_word_gets_a_suggestion() -> None:
    with pytest.raises(InvalidValue) as unfit:
        format_value(WORDS, "scater")

    assert unfit.value.suggestion == "scatter"


SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=True), st.text())


@given(st.sampled_from(all_variables()), SCALARS)
def test_formatting_is_idempotent(of: Variable, value: Scalar) -> None:
    text = fitted(of, value)

    assert text is None or format_value(of, text) == text


@given(st.sampled_from([v for v in all_variables() if v.type in ("int", "size")]), st.integers())
def test_a_valid_number_is_unchanged(of: Variable, number: int) -> None:
    text = fitted(of, number)

    assert text is None or int(text) == number


def fitted(of: Variable, value: Scalar) -> str | None:
    """The value as exported; None if invalid."""
    try:
        return format_value(of, value)
    except InvalidValue:
        return None


@given(SCALARS)
def test_values_are_one_line(value: Scalar) -> None:
    try:
        text = format_plain(value)
    except InvalidValue:
        return
    assert not set(text) & set("\0\n\r")


@given(st.integers(0, 2**20), st.sampled_from(["", "K", "k", "M", "G"]))
def test_a_suffix_multiplies(number: int, suffix: str) -> None:
    size = number * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[suffix.lower()]
    if size <= 2**31 - 1:
        assert format_value(SIZE, f"{number}{suffix}") == str(size)


@pytest.mark.parametrize("of", all_variables()[::25], ids=lambda v: v.name)
def test_every_type_has_an_expectation(of: Variable) -> None:
    assert format_expectation(of)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("MPIR_CVAR_BCAST_LONG_MSG_SIZE", "64K", "65536"),
        ("MPIR_CVAR_PRINT_ERROR_STACK", "No", "0"),
        ("MPIR_CVAR_BCAST_INTRA_ALGORITHM", "BINOMIAL", "1"),
        ("MPIR_CVAR_ENABLE_GPU", 0, "0"),
        ("MPICH_BCAST_MIN_PROCS", 12, "12"),
    ],
)
def test_a_real_mpich_accepts_the_exported_form(
    stack_prefix: Callable[[str], Path], name: str, value: Scalar, read: str
) -> None:
    mpivars = stack_prefix("mpi") / "bin" / "mpivars"
    of = known(name, "mpich")

    completed = subprocess.run(
        [mpivars],
        env=os.environ | {name: format_value(of, value)},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=patience(60),
        check=True,
    )

    answer = re.search(rf"^\t{of.name}\s*=(.*?)\tSCOPE", completed.stdout, re.MULTILINE)
    assert answer is not None
    assert answer[1] == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MPIR_CVAR_BCAST_LONG_MSG_SIZE", "64K"),
        ("MPIR_CVAR_PRINT_ERROR_STACK", "No"),
        ("MPIR_CVAR_BCAST_INTRA_ALGORITHM", "BINOMIAL"),
    ],
)
def test_a_real_mpich_aborts_on_other_forms(stack_prefix: Callable[[str], Path], name: str, value: str) -> None:
    """Why values are exported in one form."""
    mpivars = stack_prefix("mpi") / "bin" / "mpivars"

    completed = subprocess.run(
        [mpivars], env=os.environ | {name: value}, capture_output=True, timeout=patience(60), check=False
    )

    assert completed.returncode != 0
