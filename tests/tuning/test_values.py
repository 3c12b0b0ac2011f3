"""Values of variables: valid, invalid, and as exported."""

from __future__ import annotations

import csv
import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.inputs.check import Scalar
from hidl_cli.tuning.catalogue import (
    InvalidValue,
    Variable,
    all_variables,
    check_exported,
    format_expectation,
    format_plain,
    format_value,
    variable,
)
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
NETMOD = known("MPIR_CVAR_CH4_NETMOD", "mpich")
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
        (NETMOD, "OFI", "ofi"),
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
        (WHOLE, 2**31, "2147483648 exceeds 2147483647, the library's maximum", "at most 2147483647"),
        (LIMITED, 4, "4 exceeds 3", "a whole number from 0 to 3"),
        (LIMITED, -1, "-1 is below 0", "a whole number from 0 to 3"),
        (SIZE, "64X", "`64X` is not a size", "a number of bytes, with K, M or G for powers of 1024"),
        (SIZE, "-1", "-1 is below 0", "a number of bytes, with K, M or G for powers of 1024"),
        (SIZE, "2G", "2147483648 exceeds 2147483647, the library's maximum", "at most 2147483647"),
        (WORDS, "spread", "`spread` is not a known word", "one of: bunch, scatter, hybrid"),
        (PORTS, "9:5", "`9:5` is not a range of ports", "two port numbers, low:high"),
        (PORTS, "1:99999", "`1:99999` is not a range of ports", "two port numbers, low:high"),
        (NETMOD, "tcp", "`tcp` is not a known word", "one of: ofi, ucx"),
        (PATH, "", "the path is empty", "a path"),
        (PATH, "/a\n/b", "the value contains a line break", "a value on one line"),
        (known("MV2_COMM_WORLD_RANK"), 0, "the launcher sets this variable", "no value; remove the line"),
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
    of = known(name, "mpich")

    assert ask_mpich(stack_prefix("mpi"), of, name, format_value(of, value)) == read


ODD = ("0", "1", "2", "-1", "+1", " 1", "1 ", "01", "0x1", "1.5", "1e2", "16K", "", "abc", "auto", "2147483648")
ODD += tuple(
    word for each in ("yes", "on", "true", "no", "off", "false") for word in (each, each.title(), each.upper())
)
ODD += ("y", "t", "tree", "TREE", "binomial ", "USE_FIRST", "use_first", "64:64", "9:5")


@pytest.mark.parametrize(
    "name",
    [
        "MPIR_CVAR_PRINT_ERROR_STACK",
        "MPIR_CVAR_ALLGATHER_BRUCKS_KVAL",
        "MPIR_CVAR_BCAST_LONG_MSG_SIZE",
        "MPIR_CVAR_BCAST_INTRA_ALGORITHM",
        "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD",
        "MPIR_CVAR_CH4_GLOBAL_PROGRESS",
        "MPICH_BCAST_MIN_PROCS",
    ],
)
def test_an_exported_value_is_accepted_if_a_real_mpich_reads_what_it_means(
    stack_prefix: Callable[[str], Path], name: str
) -> None:
    of = known(name, "mpich")
    read = {value: ask_mpich(stack_prefix("mpi"), of, name, value) for value in ODD}
    accepted = {value for value in ODD if is_accepted(of, value)}

    assert {value for value in accepted if read[value] is None} == set()
    assert {value for value in accepted if of.type != "enum" and read[value] != format_value(of, value)} == set()
    read_as_another_number = {"", "2147483648", *(["-1"] if of.type == "size" else [])}
    assert {value for value in ODD if read[value] is not None} - accepted <= read_as_another_number


def is_accepted(of: Variable, value: str) -> bool:
    try:
        check_exported(of, value)
    except InvalidValue:
        return False
    return True


def ask_mpich(prefix: Path, of: Variable, name: str, value: str) -> str | None:
    """The value of the variable in a real MPICH where ``name`` is exported; None if it stops."""
    done = subprocess.run(
        [prefix / "bin" / "mpivars"],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=patience(60),
        check=False,
    )
    found = re.search(rf"^\t{of.name}\s*=(.*?)\tSCOPE", done.stdout, re.MULTILINE)
    return found[1] if found and done.returncode == 0 else None


@pytest.mark.parametrize("of", [SWITCH, WHOLE], ids=["bool", "int"])
@pytest.mark.parametrize("value", ODD)
def test_an_exported_value_is_accepted_if_atoi_reads_what_it_means(of: Variable, value: str) -> None:
    read = ctypes.CDLL(None).atoi(value.encode())

    assert is_accepted(of, value) is (fitted(of, value) == str(read))


#: The words that MVAPICH's documentation lists (OSU-Nowlab/MVAPICH-docs, docs/source/cvar.rst of 2025-02-11).
DOCUMENTED = [
    (row["name"], word)
    for row in csv.DictReader(Path(__file__).with_name("mvapich_words.csv").read_text().splitlines())
    for word in row["words"].split("|")
]


@pytest.mark.parametrize("family", ["mvapich", "mvapich-plus"])
def test_every_documented_word_of_mvapich_is_accepted(family: str) -> None:
    assert len(DOCUMENTED) > 400
    refused = [(name, word) for name, word in DOCUMENTED if not is_accepted(known(name, family), word)]
    assert refused == []
