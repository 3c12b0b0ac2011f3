"""The Spack packages, as far as they can be held without Spack: read, not imported."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from hidl_cli.stack.builds import fetch
from tests.conftest import REPOSITORY
from tests.spack.conftest import HIDL_REPOSITORY, PACKAGES

each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda file: file.parent.name)


def package_class(file: Path) -> ast.ClassDef:
    """The class that the package is."""
    (found,) = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))
    return found


def calls(file: Path, directive: str) -> list[ast.Call]:
    """The calls of one directive in the package's class."""
    nodes = (node for node in ast.walk(package_class(file)) if isinstance(node, ast.Call))
    return [node for node in nodes if isinstance(node.func, ast.Name) and node.func.id == directive]


def keyword(call: ast.Call, name: str) -> object:
    """The value of a keyword of a call; None where it is not given."""
    return next((ast.literal_eval(pair.value) for pair in call.keywords if pair.arg == name), None)


def smoke_tests(tree: ast.ClassDef) -> list[ast.FunctionDef]:
    """The stand-alone tests of a class."""
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_the_repository_is_there() -> None:
    assert yaml.safe_load((HIDL_REPOSITORY / "repo.yaml").read_text(encoding="utf-8"))["repo"]["namespace"] == "hidl"


def test_every_package_is_known() -> None:
    assert [file.parent.name for file in PACKAGES] == [
        "hidl_bench",
        "mvapich2_gdr",
        "mvapich2x",
        "mvapich_plus",
        "py_horovod",
        "py_hyparflow",
        "py_mpi4dask",
    ]


@each_package
def test_a_package_has_maintainers(package: Path) -> None:
    assert calls(package, "maintainers")


@each_package
def test_a_package_has_a_license(package: Path) -> None:
    """Its own, or that of Spack's own package of the same name."""
    inherits = f"from spack_repo.builtin.packages.{package.parent.name}.package import" in package.read_text("utf-8")
    assert calls(package, "license") or inherits


@each_package
def test_a_package_says_what_it_is(package: Path) -> None:
    assert ast.get_docstring(package_class(package))


@each_package
def test_a_package_has_a_smoke_test_that_says_what_it_does(package: Path) -> None:
    found = smoke_tests(package_class(package))
    if not found:  # the base's
        base = ast.parse((HIDL_REPOSITORY / "mvapich2_binary.py").read_text(encoding="utf-8"))
        found = [test for node in base.body if isinstance(node, ast.ClassDef) for test in smoke_tests(node)]
    assert found
    assert all(ast.get_docstring(test) for test in found)


@each_package
def test_what_is_downloaded_has_a_sha256(package: Path) -> None:
    own = "OwnPackage" in package.read_text(encoding="utf-8")
    checksums = [keyword(call, "sha256") for call in calls(package, "version")]
    assert all(own or re.fullmatch("[0-9a-f]{64}", str(checksum)) for checksum in checksums)
    assert checksums


def test_horovod_is_the_one_that_hidl_builds_itself() -> None:
    stack = yaml.safe_load((REPOSITORY / "recipes/stacks/horovod.yaml").read_text(encoding="utf-8"))
    (build,) = stack["builds"]
    (version,) = calls(HIDL_REPOSITORY / "packages/py_horovod/package.py", "version")
    assert (ast.literal_eval(version.args[0]), keyword(version, "sha256")) == (
        build["version"],
        build["source"]["sha256"],
    )


def test_horovod_has_the_patches_that_hidl_applies_itself() -> None:
    """By their path, seen from the package: in a checkout as in the wheel, which packs ``recipes`` as a whole."""
    package = HIDL_REPOSITORY / "packages/py_horovod/package.py"
    (relative,) = re.findall(r'^_PATCHES = "(.+)"$', package.read_text(encoding="utf-8"), re.MULTILINE)
    folder = (package.parent / relative).resolve()
    assert folder == REPOSITORY / "recipes/patches/horovod/0.28.1"
    stack = yaml.safe_load((REPOSITORY / "recipes/stacks/horovod.yaml").read_text(encoding="utf-8"))
    assert stack["builds"][0]["patches"] == "horovod/0.28.1"
    assert all(fetch.read(file) for file in folder.iterdir())


def test_every_version_of_mvapich2_gdr_is_there() -> None:
    versions = calls(HIDL_REPOSITORY / "packages/mvapich2_gdr/package.py", "version")
    assert [ast.literal_eval(call.args[0]) for call in versions] == ["2.3.7", "2.3.6", "2.3.5", "2.3.4", "2.3.3"]
