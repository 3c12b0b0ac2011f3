"""YAML for people: every value comes back as it was, by hidl's reader and by PyYAML's."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.inputs import source, yamlfile
from hidl_cli.inputs.source import SourceText
from hidl_cli.site.yamledit import YamlItem, document, scalar

printable = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=60)
numbers = st.integers(0, 10**6).map(lambda number: number / 100)  # as sizes in GiB are


def read(text: str) -> object:
    found = yamlfile.parse(SourceText(Path("x.yaml"), text))
    assert found.problems == ()
    assert found.root is not None
    return source.plain(found.root)


@given(st.lists(printable | st.none() | st.booleans() | st.integers() | numbers, max_size=8), printable)
def test_what_is_written_is_what_is_read(values: list[str | int | float | bool | None], why: str) -> None:
    text = document(
        [YamlItem("values", values, why), YamlItem("nested", (YamlItem("last", values[0] if values else None, why),))]
    )
    last = values[0] if values else None

    assert read(text) == {"values": values, "nested": {"last": last}}
    assert yaml.safe_load(text) == {"values": values, "nested": {"last": last}}


@given(st.text(), st.text())
def test_no_value_or_comment_leaves_its_line(value: str, why: str) -> None:
    text = document([YamlItem("first", value, why), YamlItem("last", 1)], head=[why])

    assert list(read(text)) == ["first", "last"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("slurm", "slurm"),
        ("cray-mpich/8.1.28", "cray-mpich/8.1.28"),
        ("no", "'no'"),
        ("12:30:00", "'12:30:00'"),
        ("it's", "'it''s'"),
        ("a: b", "'a: b'"),
        ("", "''"),
        (r"login\d+", r"'login\d+'"),
        ("a\nb", "'a b'"),
        (None, "null"),
        (True, "true"),
        (250.0, "250"),
        (502.9, "502.9"),
    ],
)
def test_a_scalar_is_plain_where_every_reader_takes_it_as_it_is(value: str | None, text: str) -> None:
    assert scalar(value) == text


def test_a_long_comment_is_cut_off() -> None:
    assert len(document([YamlItem("key", 1, "word " * 1000)])) < 600
