"""Whatever a file holds, the loader answers with problems: it never crashes, and every problem can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidl_cli.inputs import yamlfile
from hidl_cli.inputs.load import Rules, examine, schema
from hidl_cli.inputs.overlay import KindName, at_path
from hidl_cli.inputs.problems import render
from hidl_cli.inputs.source import SourceText, place, plain
from hidl_cli.plan.checks import RULES as WORKLOAD
from hidl_cli.site.checks import RULES as SITE
from hidl_cli.stack.checks import RULES as STACK

pytestmark = pytest.mark.real

many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PYDANTIC_JARGON = ("Input should", "validation", "type=", "str_", "ValidationError", "Literal")


def properties(part: Any) -> Iterator[str]:
    """The names of all keys that a JSON Schema knows, on every level."""
    if isinstance(part, dict):
        yield from part.get("properties", {})
        for below in part.values():
            yield from properties(below)


keys = st.sampled_from(
    sorted({key for kind in get_args(KindName) for key in properties(schema(kind))} | {"[key]", "str"})
)
words = st.sampled_from(["x", "local", "mpiexec", "mpich", "choice", "int", "float", "bool", "weak", "48:00:00", "a("])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words | keys
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=5), inner, max_size=6),
    max_leaves=25,
)


@pytest.fixture(params=[SITE, STACK, WORKLOAD], ids=lambda rules: rules.kind)
def rules(request: pytest.FixtureRequest, config: Path) -> Rules[Any]:
    found: Rules[Any] = request.param
    return found


def shown(rules: Rules[Any], file: Path) -> Iterator[str]:
    """All problems of a file as they are shown; the outcome must be a model or problems."""
    examined = examine(rules, at_path(rules.kind, file))
    assert (examined.model is None) == bool(examined.problems)
    for problem in examined.problems:
        text = render(problem)
        assert all(character.isprintable() or character == "\n" for character in text)
        yield text


@many
@given(content=st.binary(max_size=400))
def test_any_bytes(rules: Rules[Any], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(content)

    assert list(shown(rules, tmp_path / "x.yaml"))


@many
@given(content=st.text(alphabet="ab:-[]{},&*!|>'\"#%@?\\ \n\t0123.~<=", max_size=80))
def test_any_text_that_looks_like_yaml(rules: Rules[Any], tmp_path: Path, content: str) -> None:
    (tmp_path / "x.yaml").write_text(content)

    assert list(shown(rules, tmp_path / "x.yaml"))


@many
@given(tree=trees)
def test_any_tree_is_answered_in_words_for_people(rules: Rules[Any], tmp_path: Path, tree: Any) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")

    for text in shown(rules, tmp_path / "x.yaml"):
        said = "\n".join(line for line in text.splitlines() if " | " not in line)
        assert not any(jargon in said for jargon in PYDANTIC_JARGON), text


@many
@given(
    tree=st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1),
        st.integers() | st.booleans() | st.none() | st.text(st.characters(codec="ascii", exclude_categories=["C"])),
        min_size=1,
        max_size=5,
    )
)
def test_what_was_written_is_read_and_its_place_holds_it(tree: dict[str, Any]) -> None:
    document = yamlfile.parse(SourceText(Path("x.yaml"), yaml.safe_dump(tree, width=10_000, default_style='"')))

    assert document.root is not None, document.problems
    assert plain(document.root) == tree
    for key, value in tree.items():
        mark = place(document.root, (key,))
        assert yaml.safe_load(mark.text[mark.column - 1 :][: mark.length]) == value
