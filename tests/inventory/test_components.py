"""What an installation consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.errors import MissingPrecondition
from hidl_cli.inventory import components
from tests.inventory.made import BUILD, OTHER, PATCH, SOURCE, WHEEL, distribution, installation


def test_wheels_builds_and_own_wheels_are_each_told_once(tmp_path: Path) -> None:
    found = components(
        installation(tmp_path, {"numpy": "2.4.6", "horovod": "0.28.1", "hidl-workloads": "0.1.0"}, builds=[BUILD])
    )
    assert [(each.kind, each.name, each.version) for each in found] == [
        ("build", "horovod", "0.28.1"),
        ("own", "hidl-workloads", "0.1.0"),
        ("wheel", "numpy", "2.4.6"),
    ]
    assert found[0].hashes == (SOURCE,)
    assert found[0].patches == (("01-one.patch", PATCH),)
    assert found[2].hashes == (WHEEL, OTHER)


def test_a_program_that_was_built_is_no_package_of_pypi(tmp_path: Path) -> None:
    found = components(installation(tmp_path, builds=[BUILD | {"name": "numpy", "kind": "autotools"}]))
    told = {(each.kind, each.name): each.is_of_pypi for each in found}
    assert told["program", "numpy"] is False
    assert told["wheel", "numpy"] is True


def test_packages_of_spack_and_an_rpm_have_what_identifies_them(tmp_path: Path) -> None:
    spack = {
        "hashes": {"mpich": "abc", "zlib": "def"},
        "externals": {"zlib": "/usr"},
        "repositories": {"builtin": "f00"},
    }
    rpm = {"name": "mvapich2-gdr", "family": "mvapich2-gdr", "file": "/somewhere/m.rpm", "sha256": OTHER}
    found = components(
        installation(tmp_path, {"mpich": "4.3", "zlib": "1.3"} | {"numpy": "2.4.6"}, spack=spack, rpm=rpm, own={})
    )
    told = {(each.kind, each.name): (each.version, each.hashes, dict(each.notes)) for each in found}
    assert told["spack", "mpich"] == ("4.3", (), {"spack hash": "abc", "repository builtin": "f00"})
    assert told["external", "zlib"] == ("1.3", (), {"spack hash": "def", "path": "/usr"})
    assert told["rpm", "mvapich2-gdr"] == ("5.0.2", (OTHER,), {"file": "m.rpm"})


@pytest.mark.parametrize(
    ("lines", "license_"),
    [
        (["License-Expression: MIT AND Zlib", "License: text"], "MIT AND Zlib"),
        (["License: BSD-3-Clause"], "BSD-3-Clause"),
        (
            ["License: " + "a text that is long " * 20, "Classifier: License :: OSI Approved :: MIT License"],
            "MIT License",
        ),
        (["Classifier: License :: OSI Approved"], None),
        ([], None),
    ],
)
def test_the_license_is_the_one_of_the_metadata(tmp_path: Path, lines: list[str], license_: str | None) -> None:
    distribution(tmp_path, "NumPy", *lines)
    (numpy,) = (each for each in components(installation(tmp_path)) if each.name == "numpy")
    assert numpy.license == license_


def test_an_installation_without_its_lock_is_not_complete(tmp_path: Path) -> None:
    made = installation(tmp_path)
    (tmp_path / "lock.txt").unlink()
    with pytest.raises(MissingPrecondition, match=r"lock\.txt"):
        components(made)
