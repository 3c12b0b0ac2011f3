"""Documents appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.documents import read_json, write_json, write_text


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    document = {"text": "naïve \N{SNOWMAN}\n", "numbers": [1, 2.5, None]}
    write_json(tmp_path / "deep" / "down" / "a.json", document)
    assert read_json(tmp_path / "deep" / "down" / "a.json") == document


def test_a_failed_write_leaves_the_old_document_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": True})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert read_json(path) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]
