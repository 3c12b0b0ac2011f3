"""Which Spack is used, and whether it serves; it is not started for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack.providers.spack.host import find
from tests.stack.spack.conftest import site


def spack(root: Path, version: str) -> Path:
    """A directory that is a Spack of that version, as far as its version goes."""
    file = root / "lib" / "spack" / "spack" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(f'#: PEP440 version\n__version__ = "{version}"\n')
    (root / "bin").mkdir()
    (root / "bin" / "spack").touch(mode=0o755)
    return root


@pytest.mark.parametrize(("version", "release"), [("1.2.0.dev0", (1, 2)), ("0.23.1", (0, 23)), ("1.10.3", (1, 10))])
def test_its_version_is_read_from_its_files(tmp_path: Path, version: str, release: tuple[int, int]) -> None:
    found = find(site(), spack(tmp_path / "spack", version), {})
    assert (found.version, found.release) == (version, release)


def test_what_the_user_names_comes_before_the_site_and_that_before_the_path(tmp_path: Path) -> None:
    named, of_site, on_path = (spack(tmp_path / name, "1.0.0") for name in ("named", "site", "path"))
    machine = site(spack={"root": str(of_site)})
    environ = {"HIDL_SPACK": str(named), "PATH": str(on_path / "bin")}
    found = [find(machine, None, environ), find(machine, None, {}), find(site(), None, {"PATH": environ["PATH"]})]
    assert [one.root for one in found] == [named, of_site, on_path]


@pytest.mark.parametrize(
    ("version", "said"), [("0.22.2", "is 0.22.2; 0.23 or later is required"), ("x", "unknown version")]
)
def test_one_that_is_too_old_is_refused(tmp_path: Path, version: str, said: str) -> None:
    with pytest.raises(MissingPrecondition, match=said):
        find(site(), spack(tmp_path / "old", version), {})


def test_none_at_all_is_a_missing_precondition_that_says_how_to_get_one() -> None:
    with pytest.raises(MissingPrecondition) as caught:
        find(site(), None, {"PATH": "/nowhere"})
    assert "git clone" in (caught.value.hint or "")


def test_a_directory_that_is_not_a_spack_is_reported_with_who_named_it(tmp_path: Path) -> None:
    with pytest.raises(MissingPrecondition, match=r"\$HIDL_SPACK: .* is not a Spack installation"):
        find(site(), None, {"HIDL_SPACK": str(tmp_path)})
