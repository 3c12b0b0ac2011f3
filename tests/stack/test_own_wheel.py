"""hidl's own wheels: built from the source of the hidl that runs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from hidl_cli.errors import BuildFailed, HidlError
from hidl_cli.stack import own_wheel
from tests.conftest import REPOSITORY

PYPROJECT = (REPOSITORY / "hidl_workloads" / "pyproject.toml").read_text()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "source of $it"
    (directory / "sub").mkdir(parents=True)
    (directory / "__init__.py").write_text('__version__ = "1.2"\n')
    (directory / "sub" / "data.yaml").write_text("a: 1\n")
    (directory / "pyproject.toml").write_text(PYPROJECT)
    (directory / ".gitignore").write_text("*\n")
    return directory


def described(source: Path) -> own_wheel.OwnWheel:
    return own_wheel.describe("hidl-workloads", source, version_file=source / "__init__.py")


def test_the_wheel_holds_the_package_and_leaves_the_source_untouched(source: Path) -> None:
    before = sorted(source.rglob("*"))
    wheel = described(source)
    own_wheel.build(wheel)
    assert sorted(source.rglob("*")) == before
    names = {name for name in zipfile.ZipFile(wheel.file).namelist() if ".dist-info" not in name}
    assert {"hidl_workloads/__init__.py", "hidl_workloads/sub/data.yaml"} <= names
    assert not any("pyproject" in name or "/./" in name for name in names)


def test_it_is_built_once(source: Path) -> None:
    wheel = described(source)
    own_wheel.build(wheel)
    before = wheel.file.stat().st_mtime_ns
    own_wheel.build(described(source))
    assert wheel.file.stat().st_mtime_ns == before
    assert list(wheel.file.parent.iterdir()) == [wheel.file]


def test_other_source_gives_another_digest_and_compiled_files_do_not(source: Path) -> None:
    first = described(source)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert described(source) == first
    (source / "sub" / "data.yaml").write_text("a: 2\n")
    assert described(source).digest != first.digest
    assert described(source).file != first.file


def test_a_source_that_cannot_be_built_says_so(source: Path) -> None:
    (source / "pyproject.toml").write_text("[build-system\n")
    with pytest.raises(BuildFailed, match="hidl-workloads"):
        own_wheel.build(described(source))


def test_a_hidl_that_is_not_whole_says_so(tmp_path: Path) -> None:
    with pytest.raises(HidlError, match="hidl is incomplete"):
        described(tmp_path / "none")


@pytest.mark.parametrize("name", own_wheel.libraries())
def test_a_library_that_hidl_ships_can_be_built(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = own_wheel.library(name)
    own_wheel.build(wheel)
    names = zipfile.ZipFile(wheel.file).namelist()
    assert {f"{name}/__init__.py", f"{name}/py.typed"} <= set(names)


def test_hidls_own_workloads_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wheel = own_wheel.workloads()
    own_wheel.build(wheel)
    assert "hidl_workloads/verify.py" in zipfile.ZipFile(wheel.file).namelist()
