"""Advisories in OSV format: which versions are affected, and files that are not what they should be."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from hidl_cli import inventory
from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.inventory import OsvRecord, read


def record(events: list[dict[str, str]], package: str = "Some_Package", **keys: Any) -> dict[str, Any]:
    """An advisory about a package, with one range."""
    ranges = [{"type": "ECOSYSTEM", "events": events}, {"type": "GIT", "repo": "x", "events": [{"introduced": "0"}]}]
    affected = [{"package": {"ecosystem": "PyPI", "name": package, "purl": "x"}, "ranges": ranges}]
    return {"id": "PYSEC-2026-1", "modified": "2026-01-01T00:00:00Z", "affected": affected} | keys


FIXED = [{"introduced": "1.0"}, {"fixed": "1.5"}, {"introduced": "2.0"}, {"fixed": "2.1"}]


@pytest.mark.parametrize(
    ("events", "version", "affected", "fixed"),
    [
        (FIXED, "0.9", False, "1.5"),
        (FIXED, "1.0", True, "1.5"),
        (FIXED, "1.4.9", True, "1.5"),
        (FIXED, "1.5", False, "2.1"),
        (FIXED, "2.0.3+cpu", True, "2.1"),
        (FIXED, "2.1", False, None),
        ([{"introduced": "0"}], "0.0.1.dev1", True, None),
        ([{"introduced": "0"}, {"last_affected": "3.1"}], "3.1", True, None),
        ([{"introduced": "0"}, {"last_affected": "3.1"}], "3.1.1", False, None),
        ([{"fixed": "1.5"}, {"introduced": "0"}], "1.4", True, "1.5"),
        ([{"introduced": "0"}, {"fixed": "no version"}], "1.4", True, None),
        ([{"introduced": "0"}], "no version", None, None),
    ],
)
def test_a_version_in_a_range_is_affected(
    events: list[dict[str, str]], version: str, affected: bool | None, fixed: str | None
) -> None:
    found = OsvRecord.model_validate(record(events))
    assert found.affects("some-package", version) is affected
    assert found.fixed("some-package", version) == fixed
    assert not found.affects("another", version)


def test_a_version_that_is_listed_is_affected() -> None:
    document = record([])
    document["affected"][0]["versions"] = ["1.0", "1.1rc1"]
    found = OsvRecord.model_validate(document)
    assert [found.affects("some-package", each) for each in ("1.0", "1.0.0", "1.1rc1", "1.1")] == [
        True,
        True,
        True,
        False,
    ]


def test_what_was_withdrawn_or_is_of_another_ecosystem_is_left_out(tmp_path: Path) -> None:
    npm = record([{"introduced": "0"}])
    npm["affected"][0]["package"]["ecosystem"] = "npm"
    withdrawn = record([{"introduced": "0"}], withdrawn="2026-02-01T00:00:00Z")
    file = tmp_path / "all.json"
    file.write_text(json.dumps([npm, withdrawn, record([{"introduced": "0"}])]))
    assert len(read(file, {"some-package"})) == 1
    assert read(file, {"another"}) == []


def test_json_yaml_archives_and_trees_are_read_alike(tmp_path: Path) -> None:
    document = record(FIXED, summary="reads beyond its end", published=None)
    one, tree, archive = tmp_path / "one.json", tmp_path / "vulns", tmp_path / "all.zip"
    one.write_text(json.dumps(document))
    (tree / "some").mkdir(parents=True)
    (tree / "some" / "PYSEC-2026-1.yaml").write_text(
        yaml.safe_dump(document).replace("'2026-01-01T00:00:00Z'", "2026-01-01T00:00:00Z")
    )
    (tree / "README.md").write_text("not an advisory")
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("PYSEC-2026-1.json", one.read_text())
        opened.writestr("LICENSE", "not an advisory")
    beside = tmp_path / "beside"
    beside.mkdir()
    shutil.copy(archive, beside / "ALL.ZIP")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as packed:
        packed.add(tree, "vulns")
    (first,) = read(one, {"some-package"})
    assert read(tree, {"some-package"}) == read(archive, {"some-package"}) == [first]
    assert read(tmp_path / "all.tar.gz", {"some-package"}) == read(beside, {"some-package"}) == [first]
    shutil.copy(tmp_path / "all.tar.gz", beside)
    assert read(beside, {"some-package"}) == [first, first]
    assert first.text == "reads beyond its end"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "root:x:0:0"),
        ("a.json", "[" * 100_000),
        ("a.json", '{"id": "x"}'),
        ("a.json", '{"id": "PYSEC-1", "affected": "all"}'),
        ("a.json", '{"id": "\\u001b[31mred", "affected": []}'),
        ("a.yaml", "id: [\n"),
        ("a.yaml", "!!python/object/apply:os.system ['true']"),
        ("a.json", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")),
    ],
)
def test_a_file_that_is_no_advisory_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match="is not an advisory in OSV format"):
        read(tmp_path / name, {"some-package"})


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read(tmp_path / "none.json", set())
    monkeypatch.setattr(inventory, "_MAX_BYTES", 100)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a.json", " " * 1000)
    with pytest.raises(InvalidInput, match="larger than"):
        read(tmp_path / "bomb.zip", set())


def test_files_without_an_advisory_about_pypi_are_refused(tmp_path: Path) -> None:
    """An audit against nothing would find nothing."""
    npm = record(FIXED)
    npm["affected"][0]["package"]["ecosystem"] = "npm"
    (tmp_path / "npm.json").write_text(json.dumps(npm))
    (tmp_path / "empty").mkdir()
    for name in ("npm.json", "empty", "."):
        with pytest.raises(InvalidInput, match="contains no advisory about a PyPI package"):
            read(tmp_path / name, {"some-package"})


def test_a_directory_that_holds_an_export_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("PYSEC-2026-1.json", json.dumps(record(FIXED)))
    assert [found.id for found in read(tmp_path, {"some-package"})] == ["PYSEC-2026-1"]
