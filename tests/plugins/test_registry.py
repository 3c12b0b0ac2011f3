"""Registries find what installed packages add by entry points, and name the package that is at fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hidl_cli import plugins
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition, UsageError
from hidl_cli.plugins import Registry
from tests.plugins.packages import TOY, install, write_project
from tests.waiting import patience

PARSERS: Registry[object] = Registry("hidl.parsers", "parser", {"json": "json:loads"}, members=("__call__",))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(TOY, tmp_path_factory.mktemp("toy") / "site")


@pytest.fixture
def installed(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The toy package can be imported; further packages are added by ``syspath_prepend``."""
    monkeypatch.syspath_prepend(toy)
    plugins.all_entries.cache_clear()
    yield monkeypatch
    plugins.all_entries.cache_clear()
    for name in ("hidl_toy", "hidl_other"):
        sys.modules.pop(name, None)


def add(
    patch: pytest.MonkeyPatch, directory: Path, points: dict[str, str], code: str = "", group: str = "hidl.parsers"
) -> None:
    project = write_project(directory / "project", "hidl-other", {group: points}, code)
    patch.syspath_prepend(install(project, directory / "site"))
    plugins.all_entries.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_plug_in_is_found_after_the_built_in_names() -> None:
    assert PARSERS.names() == ("json", "toy-pairs")
    assert ("toy-pairs" in PARSERS, "toy" in PARSERS) == (True, False)


@pytest.mark.usefixtures("installed")
def test_a_plug_in_is_loaded_by_its_name() -> None:
    parse = PARSERS.get("toy-pairs")
    assert callable(parse)
    assert parse("rate = 2.5 1/s\n")["rate"]["value"] == 2.5


def test_an_unknown_name_is_a_usage_error_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown parser 'nosuch'") as caught:
        PARSERS.get("nosuch")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("known parsers: json")


def test_a_name_of_hidls_own_cannot_be_taken(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add(installed, tmp_path, {"json": "hidl_other:parse"}, "def parse(text): ...")
    with pytest.raises(InvalidInput) as caught:
        PARSERS.get("json")
    assert caught.value.message == (
        "parser 'json' is defined twice: by hidl itself and by package hidl-other 0.1 (hidl.parsers)"
    )


def test_a_name_that_two_packages_take_is_invalid(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add(installed, tmp_path, {"toy-pairs": "hidl_other:parse"}, "def parse(text): ...")
    with pytest.raises(InvalidInput, match=r"by package hidl-other 0\.1 and by package hidl-toy 1\.2"):
        PARSERS.get("toy-pairs")


@pytest.mark.parametrize(
    ("target", "code", "why"),
    [
        ("hidl_other:parse", "1 / 0", "ZeroDivisionError: division by zero"),
        ("hidl_other:parse", "import sys; sys.exit('no license')", "SystemExit: no license"),
        ("hidl_other:nosuch", "", "AttributeError: module 'hidl_other' has no attribute 'nosuch'"),
        ("hidl_nosuch:parse", "", "ModuleNotFoundError: No module named 'hidl_nosuch'"),
        ("hidl_other:parse", "parse = 7", "a parser must have `__call__`"),
    ],
    ids=["its module fails", "its module exits", "no attribute", "no module", "another kind of object"],
)
def test_a_broken_plug_in_names_its_package_and_entry_point(
    target: str, code: str, why: str, installed: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add(installed, tmp_path, {"other": target}, code)
    with pytest.raises(MissingPrecondition) as caught:
        PARSERS.get("other")
    assert caught.value.message == (
        f"plug-in other = {target} (hidl.parsers) of package hidl-other 0.1 cannot be loaded: {why}"
    )


def test_a_broken_plug_in_leaves_the_others_usable(installed: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add(installed, tmp_path, {"other": "hidl_other:parse"}, "1 / 0")
    assert callable(PARSERS.get("toy-pairs"))
    found = {entry.name: problem for entry, problem in PARSERS.problems()}
    assert found["toy-pairs"] is None
    assert "ZeroDivisionError" in str(found["other"])


def test_errors_of_a_registry_have_the_exit_codes_of_their_kind() -> None:
    kinds: list[type[HidlError]] = [UsageError, InvalidInput, MissingPrecondition]
    assert [int(kind.exit_code) for kind in kinds] == [2, 3, 4]


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_help_and_version_search_for_no_plug_ins(words: list[str]) -> None:
    code = f"import sys; sys.argv = ['hidl', *{words!r}]\nfrom hidl_cli.__main__ import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\nsys.exit('hidl_cli.plugins' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 0, done.stderr
