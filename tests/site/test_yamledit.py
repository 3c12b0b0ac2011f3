"""Values are put into a file that a person wrote, and all else in it stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.inputs import source, yamlfile
from hidl_cli.inputs.source import SourceText
from hidl_cli.site.yamledit import Value, edited, scalar

WHY = "asked of login1 on 2026-11-23: mpiname -a"
VERSION = Value(("mpi", "mvapich2", "version"), "2.3.7", WHY)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "name: x\n", f"name: x\nmpi:\n  mvapich2:\n    # {WHY}\n    version: '2.3.7'\n", id="nothing of it is there"
        ),
        pytest.param(
            "# mine\nmpi:  # libraries\n    mvapich2:\n        modules: [a]  # by hand\n\n# the end\nname: x\n",
            "# mine\nmpi:  # libraries\n    mvapich2:\n        modules: [a]  # by hand\n"
            f"        # {WHY}\n        version: '2.3.7'\n\n# the end\nname: x\n",
            id="comments, order and indentation stay",
        ),
        pytest.param(
            "mpi:\n  mvapich2:\n    version: null  # the guide does not say\n    launchers: [ibrun]\n",
            f"mpi:\n  mvapich2:\n    # {WHY}\n    version: '2.3.7'  # the guide does not say\n    launchers: [ibrun]\n",
            id="null is filled in",
        ),
        pytest.param(
            "mpi:\n  mvapich2:\n    version:\n    launchers: [ibrun]\n",
            f"mpi:\n  mvapich2:\n    # {WHY}\n    version: '2.3.7'\n    launchers: [ibrun]\n",
            id="nothing is null too",
        ),
        pytest.param(
            "mpi:\n  mvapich2:\n    modules: [a]",
            f"mpi:\n  mvapich2:\n    modules: [a]\n    # {WHY}\n    version: '2.3.7'\n",
            id="a last line without an end",
        ),
        pytest.param(
            "mpi:\n  mvapich2:\n    text: |\n      a\n      b\nname: x\n",
            f"mpi:\n  mvapich2:\n    text: |\n      a\n      b\n    # {WHY}\n    version: '2.3.7'\nname: x\n",
            id="after a text of several lines",
        ),
    ],
)
def test_a_value_is_put_where_it_belongs(before: str, after: str) -> None:
    assert edited(before, [VERSION]) == after


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("mpi: {mvapich2: {modules: [a]}}\n", id="flow mappings"),
        pytest.param("mpi:\n  mvapich2:\n    version: 2.3.6\n", id="somebody wrote another value"),
        pytest.param("mpi: []\n", id="not a mapping"),
        pytest.param("mpi:\r\n  mvapich2:\r\n    modules: [a]\r\n", id="line ends of Windows"),
        pytest.param("a: &a\n  modules: [a]\nmpi:\n  mvapich2: *a\n", id="an alias: its anchor would change too"),
        pytest.param("mpi:\n  mvapich2: &a\n    modules: [a]\n  other: *a\n", id="an anchor that others use"),
        pytest.param("mpi:\n  mvapich2:\n    modules: [a,\n      b\n    ]\n", id="a list whose end is not known"),
        pytest.param("mpi: [\n", id="not YAML"),
    ],
)
def test_what_cannot_be_changed_safely_is_left_alone(text: str) -> None:
    assert edited(text, [VERSION]) is None


def test_a_value_that_was_put_there_makes_way_with_its_comment() -> None:
    once = edited("name: x\n", [VERSION])
    assert once is not None
    newer = Value(VERSION.path, "2.3.8", "asked of login2 on 2027-01-01: mpiname -a", was="2.3.7")
    twice = edited(once, [newer])
    assert twice is not None
    assert twice.splitlines()[-2:] == ["    # asked of login2 on 2027-01-01: mpiname -a", "    version: '2.3.8'"]
    assert "login1" not in twice


KEYS = st.sampled_from(["mpi", "compilers", "mvapich2", "gcc", "version", "prefix"])
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.text(st.characters(codec="ascii", exclude_categories=["Cc"])), st.lists(st.just("a"))),
    lambda below: st.dictionaries(KEYS, below, min_size=1, max_size=4),
    max_leaves=12,
).filter(lambda one: isinstance(one, dict))


def written(data: object, indent: str = "") -> str:
    """The document as a person writes it, in blocks."""
    lines = []
    assert isinstance(data, dict)
    for key, value in data.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{key}:  # {key}\n{written(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {value if isinstance(value, list) else scalar(value)}\n")
    return "".join(lines)


@given(DOCUMENTS, st.lists(KEYS, min_size=1, max_size=3), st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_whatever_is_put_in_nothing_else_changes(data: object, path: list[str], value: str) -> None:
    text = written(data)
    made = edited(text, [Value(tuple(path), value, "asked of x: y")])
    if made is not None:
        kept = [line for line in made.splitlines() if line in text.splitlines()]
        assert len(kept) >= len([line for line in text.splitlines() if "null" not in line])
        root = yamlfile.parse(SourceText(Path("x"), made)).root
        assert root is not None
        found = source.plain(root)
        for step in path:
            found = found[step]
        assert found == value
