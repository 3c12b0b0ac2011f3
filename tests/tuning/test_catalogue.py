"""The catalogue as data: complete, consistent, and true to a real MPICH."""

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
    format_value,
    nearest_name,
    numbers,
    pattern,
    patterns,
    rows_of,
    variable,
    variables,
)
from hidl_cli.tuning.judge import ValidSetting, judge, list_counterparts
from hidl_cli.tuning.layers import load_presets
from tests.waiting import patience


def test_a_family_has_one_row_per_name() -> None:
    readings = Counter((name, reader.family) for v in all_variables() for name in v.names for reader in v.readers)

    assert [reading for reading, count in readings.items() if count > 1] == []


def test_every_default_is_a_valid_value() -> None:
    known = [v for v in all_variables() if v.default and v.type != "internal"]

    assert [(v.name, v.default) for v in known if format_value(v, v.default) != v.default] == []


@pytest.mark.parametrize("table", ["variables", "patterns", "counterparts"])
def test_every_row_has_a_provenance(table: str) -> None:
    assert [row for row in rows_of(table) if not row["provenance"].strip()] == []


def test_every_variable_has_a_meaning() -> None:
    assert [v.name for v in all_variables() if not v.meaning or v.meaning_from not in ("written", "name")] == []


def test_enumerations_and_texts_have_words() -> None:
    assert [v.name for v in all_variables() if v.type == "enum" and not v.words] == []
    assert {v.type for v in all_variables() if v.words} == {"enum", "text"}


def test_limits_are_ordered() -> None:
    limits = [v.limits for v in all_variables()]

    assert [pair for pair in limits if None not in pair and pair[0] >= pair[1]] == []  # type: ignore[operator]


def test_every_word_is_a_valid_value() -> None:
    words = [(v, word) for v in all_variables() for word in v.words if "*" not in word]

    assert [(v.name, word) for v, word in words if format_value(v, word) != word] == []


def test_a_counterpart_is_read_by_its_families() -> None:
    known = [other for row in rows_of("counterparts") for other in list_counterparts(row["of"]) if other.variable]

    unread = [
        (other.of, other.variable, family)
        for other in known
        for family in FAMILIES
        if family in other.families and not (variable(other.variable, family) or pattern(other.variable, family))
    ]
    assert unread == []


def test_a_counterpart_has_known_families() -> None:
    named = {family for row in rows_of("counterparts") for family in row["families"].split(";")}

    assert named <= set(FAMILIES)


def test_a_counterpart_belongs_to_a_known_variable() -> None:
    assert [row["of"] for row in rows_of("counterparts") if not variables(row["of"])] == []


def test_every_preset_is_read_by_its_family_and_version() -> None:
    known = [(p, name, variable(name, p.family)) for p in load_presets() for name in p.values]
    readers = [(p, name, found.reader(p.family) if found else None) for p, name, found in known]

    unread = [(p.family, n) for p, n, reader in readers if not (reader and reader.includes((p.version or ">=0.1")[2:]))]
    assert unread == []


def test_a_preset_needs_valid_variables_of_its_family() -> None:
    needed = [(preset.family, name, value) for preset in load_presets() for name, value in preset.needs]

    assert len(needed) >= 4
    for family, name, value in needed:
        assert judge(family, None, name, value) == ValidSetting(name, value)


def test_prefixes_are_unique() -> None:
    assert len({known.prefix for known in patterns()}) == len(patterns())


def test_the_longest_prefix_matches() -> None:
    found = pattern("OMPI_MCA_btl")

    assert found is not None
    assert found.prefix == "OMPI_MCA_"


def test_a_prefix_alone_is_not_a_name() -> None:
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


def test_variables_of_the_binary_release_are_not_in_the_source_release() -> None:
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
def test_first_version(relation: str, since: str, version: str | None, admitted: bool) -> None:
    assert Reader("mvapich2", relation, since).includes(version) is admitted


@pytest.mark.parametrize(("version", "admitted"), [("4.3.1", True), ("4.2.3", False), ("5.0.0", False), (None, True)])
def test_last_version(version: str | None, admitted: bool) -> None:
    assert Reader("mpich", ">", "4.2.3", "5.0.0").includes(version) is admitted


@pytest.mark.parametrize(("version", "found"), [("2.3.7-1", (2, 3, 7)), ("4.1rc1", (4, 1)), ("5.0.0", (5,)), ("", ())])
def test_numbers_of_a_version(version: str, found: tuple[int, ...]) -> None:
    assert numbers(version) == found


@pytest.fixture(scope="module")
def asked(stack_prefix: Callable[[str], Path]) -> dict[str, str]:
    """What a real MPICH answers: its control variables with their defaults."""
    mpivars = stack_prefix("mpi") / "bin" / "mpivars"
    output = subprocess.run(
        [mpivars], capture_output=True, text=True, errors="replace", timeout=patience(60), check=True
    ).stdout
    return dict(re.findall(r"^\t(MPIR_CVAR_\w+)\s*=(.*?)\tSCOPE", output, re.MULTILINE))


def test_every_control_variable_of_a_real_mpich_is_in_the_catalogue(asked: dict[str, str]) -> None:
    assert len(asked) > 400
    known = {name: variable(name, "mpich") for name in asked}
    readers = {name: found.reader("mpich") for name, found in known.items() if found}

    assert [name for name in asked if not (reader := readers.get(name)) or not reader.includes("5.0.2")] == []


def test_every_mpich_variable_of_the_catalogue_is_in_a_real_mpich(
    stack_prefix: Callable[[str], Path],
) -> None:
    binary = (stack_prefix("mpi") / "lib" / "libmpi.so.12").read_bytes()
    read = {v.name for v in all_variables() if (reader := v.reader("mpich")) and reader.includes("5.0.2")}

    assert [name for name in read if name.startswith("MPIR_CVAR_") and name.encode() not in binary] == []


def test_defaults_match_a_real_mpich(asked: dict[str, str]) -> None:
    known = {name: variable(name, "mpich") for name in asked}
    numbered = {name: v for name, v in known.items() if v and v.type in ("bool", "int", "size")}

    assert {name: (v.default, asked[name]) for name, v in numbered.items() if v.default != asked[name]} == {}
