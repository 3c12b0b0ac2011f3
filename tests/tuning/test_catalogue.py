"""The catalogue as data: whole, without contradictions, and true to a real MPICH."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.mpi import FAMILIES
from hidl_cli.tuning.catalogue import (
    Reader,
    all_names,
    all_variables,
    nearest_name,
    numbers,
    pattern,
    patterns,
    rows_of,
    variable,
    variables,
)
from hidl_cli.tuning.counterparts import counterparts
from hidl_cli.tuning.presets import presets
from hidl_cli.tuning.values import canonical


def test_no_family_reads_a_name_in_two_ways() -> None:
    readings = Counter((name, reader.family) for v in all_variables() for name in v.names for reader in v.readers)

    assert [reading for reading, count in readings.items() if count > 1] == []


def test_every_default_fits_its_own_variable() -> None:
    known = [v for v in all_variables() if v.default and v.type != "internal"]

    assert [(v.name, v.default) for v in known if canonical(v, v.default) != v.default] == []


@pytest.mark.parametrize("table", ["variables", "patterns", "counterparts"])
def test_every_row_says_where_it_is_known_from(table: str) -> None:
    assert [row for row in rows_of(table) if not row["provenance"].strip()] == []


def test_every_variable_says_what_it_does() -> None:
    assert [v.name for v in all_variables() if not v.meaning or v.meaning_from not in ("written", "name")] == []


def test_an_enumeration_has_words_and_nothing_else_has() -> None:
    assert [v.name for v in all_variables() if (v.type == "enum") != bool(v.words)] == []


def test_limits_are_in_order() -> None:
    limits = [v.limits for v in all_variables()]

    assert [pair for pair in limits if None not in pair and pair[0] >= pair[1]] == []  # type: ignore[operator]


def test_every_word_of_an_enumeration_fits_it() -> None:
    words = [(v, word) for v in all_variables() for word in v.words if "*" not in word]

    assert [(v.name, word) for v, word in words if canonical(v, word) != word] == []


def test_a_counterpart_is_read_by_the_families_that_it_is_for() -> None:
    known = [other for row in rows_of("counterparts") for other in counterparts(row["of"]) if other.variable]

    unread = [
        (other.of, other.variable, family)
        for other in known
        for family in FAMILIES
        if family in other.families and not (variable(other.variable, family) or pattern(other.variable, family))
    ]
    assert unread == []


def test_a_counterpart_is_for_families_that_there_are() -> None:
    named = {family for row in rows_of("counterparts") for family in row["families"].split(";")}

    assert named <= set(FAMILIES)


def test_a_variable_with_a_counterpart_is_known() -> None:
    assert [row["of"] for row in rows_of("counterparts") if not variables(row["of"])] == []


def test_every_preset_is_read_by_its_family_from_its_version_on() -> None:
    known = [(p, name, variable(name, p.family)) for p in presets() for name in p.values]
    readers = [(p, name, found.reader(p.family) if found else None) for p, name, found in known]

    unread = [(p.family, n) for p, n, reader in readers if not (reader and reader.admits((p.version or ">=0.1")[2:]))]
    assert unread == []


def test_no_prefix_is_given_twice() -> None:
    assert len({known.prefix for known in patterns()}) == len(patterns())


def test_a_name_falls_under_its_longest_prefix() -> None:
    found = pattern("OMPI_MCA_btl")

    assert found is not None
    assert found.prefix == "OMPI_MCA_"


def test_a_prefix_alone_is_no_name() -> None:
    assert pattern("UCX_") is None


@pytest.mark.parametrize("name", ["MPIR_CVAR_ENABLE_GPU", "MVP_ENABLE_GPU", "MPICH_ENABLE_GPU"])
def test_a_control_variable_of_mvapich_has_three_names(name: str) -> None:
    found = variable(name, "mvapich-plus")

    assert found is not None
    assert found.name == "MPIR_CVAR_ENABLE_GPU"


def test_a_control_variable_of_mvapich2_has_four_prefixes() -> None:
    names = {n for n in all_names() if n.endswith("_ALLREDUCE_SHORT_MSG_SIZE") and variable(n, "mvapich2")}

    assert {n.removesuffix("_ALLREDUCE_SHORT_MSG_SIZE") for n in names} == {"MV2", "MPIR_CVAR", "MPIR_PARAM", "MPICH"}


def test_mvapich_reads_no_variable_of_mvapich2() -> None:
    assert [name for name in all_names() if name.startswith("MV2_") and variable(name, "mvapich")] == []


def test_what_only_the_binary_release_has_is_not_said_of_the_source_release() -> None:
    only = ("MV2_SUPPORT_DL", "MV2_USE_GDRCOPY", "MV2_GPUDIRECT_GDRCOPY_LIB", "MV2_USE_GPUDIRECT_RDMA")

    assert [name for name in only if variable(name, "mvapich2") or not variable(name, "mvapich2-gdr")] == []


@pytest.mark.parametrize(
    ("misspelled", "meant"),
    [
        ("MV2_USE_CDUA", "MV2_USE_CUDA"),
        ("MV2_CPU_BINDING_POLCY", "MV2_CPU_BINDING_POLICY"),
        ("mv2_use_cuda", "MV2_USE_CUDA"),
        ("MVP_ENABLE_GPUS", "MVP_ENABLE_GPU"),
        ("ucx_tls", "UCX_TLS"),
        ("OMPI_mca_btl", "OMPI_MCA_btl"),
        ("OMP_NUM_THREADS", None),
        ("LD_LIBRARY_PATH", None),
        ("XYZZY", None),
    ],
)
def test_the_nearest_name(misspelled: str, meant: str | None) -> None:
    assert nearest_name(misspelled) == meant


@pytest.mark.parametrize(
    ("relation", "since", "version", "admitted"),
    [
        (">=", "2.3.6", "2.3.6", True),
        (">=", "2.3.6", "2.3.7-1", True),
        (">=", "2.3.6", "2.3.5", False),
        (">=", "2.3", "2.3.0", True),
        (">=", "2.3", "2.10", True),
        (">", "2.3.3", "2.3.3", False),
        (">", "2.3.3", "2.3.4", True),
        (">=", "2.3.6", None, True),
        (">=", "2.3.6", "unknown", True),
        ("", "", "1.0", True),
    ],
)
def test_since_which_version(relation: str, since: str, version: str | None, admitted: bool) -> None:
    assert Reader("mvapich2", relation, since).admits(version) is admitted


@pytest.mark.parametrize(("version", "admitted"), [("4.3.1", True), ("4.2.3", False), ("5.0.0", False), (None, True)])
def test_until_which_version(version: str | None, admitted: bool) -> None:
    assert Reader("mpich", ">", "4.2.3", "5.0.0").admits(version) is admitted


@pytest.mark.parametrize(("version", "found"), [("2.3.7-1", (2, 3, 7)), ("4.1rc1", (4, 1)), ("5.0.0", (5,)), ("", ())])
def test_the_numbers_of_a_version(version: str, found: tuple[int, ...]) -> None:
    assert numbers(version) == found


@pytest.fixture(scope="module")
def asked(stack_prefix: Callable[[str], Path]) -> dict[str, str]:
    """What a real MPICH answers: its control variables with their defaults."""
    mpivars = stack_prefix("mpi") / "bin" / "mpivars"
    output = subprocess.run([mpivars], capture_output=True, text=True, errors="replace", timeout=60, check=True).stdout
    return dict(re.findall(r"^\t(MPIR_CVAR_\w+)\s*=(.*?)\tSCOPE", output, re.MULTILINE))


def test_every_control_variable_of_a_real_mpich_is_in_the_catalogue(asked: dict[str, str]) -> None:
    assert len(asked) > 400
    known = {name: variable(name, "mpich") for name in asked}
    readers = {name: found.reader("mpich") for name, found in known.items() if found}

    assert [name for name in asked if not (reader := readers.get(name)) or not reader.admits("5.0.2")] == []


def test_the_catalogue_holds_nothing_that_a_real_mpich_does_not_know(
    stack_prefix: Callable[[str], Path],
) -> None:
    binary = (stack_prefix("mpi") / "lib" / "libmpi.so.12").read_bytes()
    read = {v.name for v in all_variables() if (reader := v.reader("mpich")) and reader.admits("5.0.2")}

    assert [name for name in read if name.startswith("MPIR_CVAR_") and name.encode() not in binary] == []


def test_the_defaults_are_those_of_a_real_mpich(asked: dict[str, str]) -> None:
    known = {name: variable(name, "mpich") for name in asked}
    numbered = {name: v for name, v in known.items() if v and v.type in ("bool", "int", "size")}

    assert {name: (v.default, asked[name]) for name, v in numbered.items() if v.default != asked[name]} == {}
