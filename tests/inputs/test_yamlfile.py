"""YAML with places: values by YAML 1.2's core schema, a mark for each key and value, a problem for each fault."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hidl_cli.errors import Problem
from hidl_cli.inputs import yamlfile
from hidl_cli.inputs.problems import render
from hidl_cli.inputs.source import MAX_BYTES, SourceText, place, plain


@pytest.fixture(params=["CSafeLoader", "SafeLoader"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with libyaml's parser and with the one in Python."""
    if not hasattr(yaml, request.param):
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(yamlfile, "_LOADER", getattr(yaml, request.param))


def data(text: str) -> object:
    document = yamlfile.parse(SourceText(Path("x.yaml"), text))
    assert document.root is not None, document.problems
    assert document.problems == ()
    return plain(document.root)


def problems(text: str) -> tuple[Problem, ...]:
    return yamlfile.parse(SourceText(Path("x.yaml"), text)).problems


def spot(text: str, *path: str | int, on_key: bool = False) -> str:
    """The marked place of ``path``, as ``line:column text``."""
    root = yamlfile.parse(SourceText(Path("x.yaml"), text)).root
    assert root is not None
    mark = place(root, path, on_key=on_key)
    return f"{mark.line}:{mark.column} {mark.text[mark.column - 1 :][: mark.length]}"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("48:00:00", "48:00:00"),  # YAML 1.1: 172800
        ("no", "no"),  # YAML 1.1: false
        ("on", "on"),
        ("1_000", "1_000"),  # YAML 1.1: 1000
        ("012", 12),  # YAML 1.1: 10
        ("0o14", 12),
        ("0xff", 255),
        ("-7", -7),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-.inf", float("-inf")),
        ("2026-11-20", "2026-11-20"),  # YAML 1.1: a date
        ("true", True),
        ("FALSE", False),
        ("", None),
        ("~", None),
        ("null", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("!!int 1", 1),
        ("[1, a]", [1, "a"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_values_are_those_of_yaml_1_2(written: str, value: object) -> None:
    assert data(f"key: {written}\n") == {"key": value}


def test_an_alias_stands_for_its_anchor() -> None:
    assert data("a: &a {x: [1]}\nb: *a\n") == {"a": {"x": [1]}, "b": {"x": [1]}}


def test_every_key_and_value_knows_its_place() -> None:
    text = "name: x\nnode_types:\n  gpu: {cores: 56, gpus: '4'}\nlist:\n  - one\n  - {two: 2}\n"

    assert spot(text, "name") == "1:7 x"
    assert spot(text, "name", on_key=True) == "1:1 name"
    assert spot(text, "node_types", "gpu", "cores") == "3:16 56"
    assert spot(text, "node_types", "gpu", "gpus") == "3:26 '4'"
    assert spot(text, "node_types", "gpu") == "3:3 gpu"
    assert spot(text, "list", 0) == "5:5 one"
    assert spot(text, "list", 1, "two", on_key=True) == "6:6 two"


def test_what_is_not_there_is_placed_at_the_key_around_it() -> None:
    text = "name: x\npartitions:\n  normal: {}\n"

    assert spot(text, "partitions", "normal", "node_type") == "3:3 normal"
    assert spot(text, "title") == "1:1 name"


def test_lines_are_counted_as_editors_count_them() -> None:
    assert spot("a: 'x\u2028y'\r\nb: 1\rc: 2\nd: 3", "d") == "4:4 3"


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "empty"),
        ("# only a comment\n", 1, 1, "empty"),
        ("- a\n", 1, 1, "contains a list"),
        ("just text\n", 1, 1, "contains text"),
        ("a: 1\n---\nb: 2\n", 2, 1, "more than one document"),
        ("a: 1\nb: !!python/object/apply:os.system [id]\n", 2, 4, "tag `!!python/object/apply:os.system`"),
        ("a: !mine x\n", 1, 4, "tag `!mine`"),
        ("a: !!int x\n", 1, 4, "does not fit"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, "`a` is duplicated, first on line 1"),
        ("a: {b: 1, b: 2}\n", 1, 11, "`b` is duplicated"),
        ("a: 1\n2: b\n", 2, 1, "key `2` is a whole number"),
        ("true: b\n", 1, 1, "key `true` is true or false"),
        ("a: &a {x: 1}\nb:\n  <<: *a\n", 3, 3, "merge keys"),
        ("a: 1\n\tb: 2\n", 2, 1, "invalid YAML"),
        ("a: b: c\n", 1, 5, "invalid YAML"),
        ("a: [1,\n  2\nb: 3\n", 3, None, "invalid YAML"),
        ("a: 'never closed\nb: 1\n", 2, None, "invalid YAML"),
        ("a: @x\n", 1, 4, "invalid YAML"),
        ("a: *nobody\n", 1, 4, "unknown anchor `&nobody`"),
        ("a: &a [*a]\n", 1, 8, "refers to itself"),
        ('a: "\\e[31m"\n', 1, 4, "control character"),
        (f"a: {'9' * 5000}\n", 1, 4, "a number of 5000 characters"),
        ("a: " + "[" * 60, 1, 53, "deeper than 50"),
    ],
)
def test_a_fault_of_form_is_a_finding_at_its_place(text: str, line: int, column: int | None, message: str) -> None:
    (problem,) = problems(text)

    assert problem.mark is not None
    assert (problem.mark.line, message in problem.message) == (line, True), problem
    assert column in (None, problem.mark.column)


def test_faults_that_can_be_stepped_over_are_all_collected() -> None:
    found = problems("a: 1\na: 2\n3: x\nb: !mine y\n<<: {}\n")

    assert [problem.mark.line for problem in found if problem.mark] == [2, 3, 4, 5]


def test_too_many_faults_end_the_reading() -> None:
    found = problems("".join(f"{number}: x\n" for number in range(10_000)))

    assert len(found) == yamlfile.MAX_FINDINGS + 1
    assert "more than 100 errors" in found[-1].message


def test_aliases_cannot_nest_deeper_than_the_limit() -> None:
    lines = ["a0: &a0 " + "[" * 40 + "]" * 40]
    lines += [f"a{n}: &a{n} " + "[" * 40 + f"*a{n - 1}" + "]" * 40 for n in range(1, 5)]

    (problem,) = problems("\n".join(lines))

    assert "deeper than 50" in problem.message


def refused(path: Path) -> Problem:
    document = yamlfile.read(path)
    (problem,) = document.problems
    assert document.root is None
    return problem


def test_a_large_file_is_refused_with_its_size(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"#" * (MAX_BYTES + 1))

    assert "1,048,577 bytes" in refused(file).message


@pytest.mark.parametrize(
    ("content", "message", "line", "column"),
    [
        ("a: 1\nb: é\n".encode("latin-1"), "byte 0xe9 at offset 8", 2, 4),
        ("a: 1\n".encode("utf-16"), "encoded in UTF-16", 0, 0),
        ("a: 1\n".encode("utf-16-be"), "control character U+0000", 1, 1),
        ("a: 1\n".encode("utf-32"), "encoded in UTF-32", 0, 0),
        (b"a: 1\nb: x\0y\n", "control character U+0000", 2, 5),
        (b"a: \x1b[31m\n", "control character U+001B", 1, 4),
    ],
)
def test_another_encoding_or_a_control_character_is_named_with_its_place(
    tmp_path: Path, content: bytes, message: str, line: int, column: int
) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)

    problem = refused(file)

    assert message in problem.message
    assert problem.mark is not None
    assert (problem.mark.line, problem.mark.column) == (line, column)


def test_a_byte_order_mark_of_utf_8_is_not_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")

    document = yamlfile.read(file)

    assert document.root is not None
    assert plain(document.root) == {"a": 1}


def test_what_is_not_a_readable_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "directory.yaml").mkdir()

    assert "a named pipe" in refused(tmp_path / "fifo.yaml").message
    assert "a directory" in refused(tmp_path / "directory.yaml").message
    assert "a device" in refused(Path("/dev/zero")).message
    assert "No such file" in refused(tmp_path / "missing.yaml").message
    assert "cannot read" in refused(tmp_path / "nul\0.yaml").message


def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: 1\n")
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read every file")

    assert "Permission denied" in refused(file).message


def test_a_finding_without_a_line_is_shown_with_its_file(tmp_path: Path) -> None:
    shown = render(refused(tmp_path / "missing.yaml"))

    assert f"--> {tmp_path}/missing.yaml\n" in shown
