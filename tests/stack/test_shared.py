"""A root that several install into: its group and umask, and what users who may not write there have of their own."""

from __future__ import annotations

import errno
import fcntl
import grp
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hidl_cli.stack import installation
from hidl_cli.stack.installation import hold_lock
from tests.conftest import REPOSITORY, Hidl
from tests.stack.conftest import recipe, site
from tests.waiting import patience, until


def public_python() -> str | None:
    """A Python that all users may start, as this one in root's home is not."""
    for python in (Path(sys.executable).resolve(), Path("/usr/bin/python3")):
        if python.exists() and all(path.stat().st_mode & 0o001 for path in (python, *python.resolve().parents)):
            return str(python)
    return None


pytestmark = pytest.mark.real

#: A group of every Debian, and users without a name.
GROUP, STAFF, COLLEAGUE, USER = "users", 41001, 41002, 41003
#: Reads what only root may read, as the checkout and its Python can be; writes as that user.
AS_USER = tuple(f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set"))


@dataclass(frozen=True)
class User:
    """Types hidl's commands."""

    number: int
    groups: str
    environment: Mapping[str, str]

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        who = (f"--reuid={self.number}", f"--regid={self.number}", f"--groups={self.groups}")
        command = ("setpriv", *who, *AS_USER, sys.executable, "-m", "hidl_cli", *words)
        limit = patience(300)
        return subprocess.run(
            command,
            cwd=self.environment["HOME"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all users reach, for tests in which several take part."""
    if os.getuid() != 0:
        pytest.skip("NEEDS root: several Unix users take part")
    if public_python() is None:
        pytest.skip("NEEDS a Python that all users may start")
    directory = Path(tempfile.mkdtemp(prefix="hidl-shared-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def shared(place: Path) -> Path:
    """The centre's root, which belongs to ``STAFF``, with nobody's group yet."""
    root = place / "root"
    root.mkdir()
    os.chown(root, STAFF, STAFF)
    return root


def user(place: Path, root: Path, number: int, *packages: str, on: str = "local", **install: str) -> User:
    """One whose file of the site ``on`` names the root, with a stack ``mine`` of these packages beside MPI's.

    A member of ``GROUP`` if ``install`` names it.
    """
    home = place / str(number)
    config = home / "config" / "hidl"
    files = {
        f"sites/{on}.yaml": {
            "name": on,
            "extends": on,
            "install": {"root": str(root), "python": public_python(), **install},
        },
        "stacks/mine.yaml": {
            "name": "mine",
            "title": "a stack",
            "mpi": "mpich",
            "packages": dict.fromkeys(["mpich", "mpi4py", *packages], ""),
        },
    }
    for name, document in files.items():
        (config / name).parent.mkdir(parents=True, exist_ok=True)
        (config / name).write_text(yaml.safe_dump(document))
    for directory in (home, *home.rglob("*")):
        os.chown(directory, number, number)
    known = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(("PIP_", "UV_", "SSL_")) and not name.endswith("_CACHE_DIR")) or name == "PATH"
    }
    directories = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
    environment = {**known, **directories, "HOME": str(home), "PYTHONPATH": str(REPOSITORY), "USER": f"user{number}"}
    groups = ",".join(map(str, (number, *([grp.getgrnam(GROUP).gr_gid] if install.get("group") == GROUP else []))))
    return User(number, groups, environment)


def prefixes(root: Path, site: str = "local") -> list[Path]:
    return sorted(path for path in (root / site / "mine").iterdir() if path.is_dir() and not path.is_symlink())


def modes(root: Path) -> dict[str, set[int]]:
    """All modes of directories and of files below the root, and the root's own."""
    found: dict[str, set[int]] = {"directories": set(), "files": set()}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            found["directories" if path.is_dir() else "files"].add(stat.S_IMODE(status.st_mode))
    return found


def test_what_one_installs_another_upgrades_takes_back_and_removes(place: Path, shared: Path) -> None:
    staff, colleague = (user(place, shared, number, group=GROUP) for number in (STAFF, COLLEAGUE))
    done = staff("install", "mine")
    assert done.returncode == 0, done.stderr
    (first,) = prefixes(shared)
    upgraded = user(place, shared, COLLEAGUE, "attrs", group=GROUP)("install", "mine")
    assert upgraded.returncode == 0, upgraded.stderr
    assert len(prefixes(shared)) == 2
    assert colleague("stack", "rollback", "mine").stdout.startswith(f"mine: {first} is in use")
    assert staff("stack", "verify", "mine", "--all").returncode == 0
    number = grp.getgrnam(GROUP).gr_gid
    assert {path.lstat().st_gid for path in (shared, *shared.rglob("*"))} == {number}
    found = modes(shared)
    assert found["directories"] == {0o2775}
    assert [oct(mode) for mode in found["files"] if mode & 0o002] == []
    assert {path.stat().st_uid for path in prefixes(shared)} == {STAFF, COLLEAGUE}
    refused = staff("uninstall", "mine", "--all", "--yes")
    assert (refused.returncode, "other users' jobs may use it" in refused.stderr) == (4, True)
    assert len(prefixes(shared)) == 2
    removed = staff("uninstall", "mine", "--all", "--yes", "--force")
    assert (removed.returncode, prefixes(shared)) == (0, []), removed.stderr


def test_a_umask_keeps_it_from_others_and_modules_are_compiled(place: Path, shared: Path) -> None:
    staff = user(place, shared, STAFF, group=GROUP, umask="027")
    assert staff("install", "mine").returncode == 0
    below = {stat.S_IMODE(path.stat().st_mode) for path in shared.rglob("*") if path.is_dir()}
    assert below == {0o2750}
    (package,) = prefixes(shared)[0].glob("lib/python*/site-packages/mpi4py")
    assert {path.name.partition(".")[0] for path in (package / "__pycache__").iterdir()} >= {"run", "typing", "bench"}


@pytest.mark.deep
def test_a_user_has_his_own_beside_the_centres(place: Path, shared: Path) -> None:
    staff, somebody = user(place, shared, STAFF), user(place, shared, USER)
    assert staff("install", "mine").returncode == 0
    (theirs,) = prefixes(shared)
    assert "nothing to do" in somebody("install", "mine").stdout
    refused = somebody("uninstall", "mine", "--yes")
    assert (refused.returncode, "cannot change the installations" in refused.stderr) == (4, True)
    with_attrs = user(place, shared, USER, "attrs")
    refused = with_attrs("install", "mine")
    assert (refused.returncode, "--own" in refused.stderr) == (4, True)
    both = with_attrs("install", "mine", "--own", "--prefix", str(place))
    assert (both.returncode, "cannot be combined" in both.stderr) == (2, True)
    own = json.loads(with_attrs("install", "mine", "--own", "--json").stdout)["installations"][0]["prefix"]
    assert Path(own).is_relative_to(place / str(USER))

    def in_use(one: User) -> str:
        return one("stack", "exec", "mine", "--", "python", "-c", "import sys; print(sys.prefix)").stdout.strip()

    assert (in_use(with_attrs), in_use(staff)) == (own, str(theirs))
    listed = json.loads(with_attrs("stack", "list", "--json").stdout)["stacks"]
    (mine,) = (stack["installations"] for stack in listed if stack["name"] == "mine")
    assert [found["prefix"] for found in mine] == [own, str(theirs)]
    kept = {
        item["path"]: item["kept"] for item in json.loads(with_attrs("prune", "--dry-run", "--json").stdout)["items"]
    }
    assert (kept[own], kept[str(theirs)]) == ("in use", "in use")
    Path(own, "activate.sh").unlink()
    found = json.loads(with_attrs("doctor", "--json").stdout)["findings"]
    assert [each["where"] for each in found if "activate.sh is missing" in each["seen"]] == [own]
    assert with_attrs("uninstall", "mine", "--yes").returncode == 0
    assert in_use(with_attrs) == str(theirs)
    assert theirs.is_dir()


@pytest.mark.deep
def test_what_a_user_has_of_his_own_is_installed_by_the_centres_lock(place: Path, shared: Path) -> None:
    staff, somebody = user(place, shared, STAFF), user(place, shared, USER)
    assert staff("install", "mine").returncode == 0
    assert len(list((shared / "locks").iterdir())) == 1
    installed = somebody("install", "mine", "--own", "--locked")
    assert installed.returncode == 0, installed.stderr
    digests = [
        json.loads((prefix / "manifest.json").read_text())["lock"]["digest"]
        for prefix in (*prefixes(shared), *prefixes(place / str(USER) / "data" / "hidl" / "installations"))
    ]
    assert len(digests) == 2
    assert len(set(digests)) == 1


@pytest.mark.parametrize(
    ("install", "said"),
    [
        ({"group": "no-such-group"}, "group 'no-such-group'"),
        ({"group": "daemon"}, "cannot be assigned to group daemon"),
    ],
)
def test_a_group_that_cannot_be_given_is_said(place: Path, shared: Path, install: dict[str, str], said: str) -> None:
    refused = user(place, shared, STAFF, **install)("install", "mine")
    assert (refused.returncode, said in refused.stderr) == (4, True), refused.stderr


def test_an_invalid_umask_is_said(place: Path, shared: Path) -> None:
    refused = user(place, shared, STAFF, umask="999")("install", "mine")
    assert (refused.returncode, "umask: '999'" in refused.stderr) == (3, True), refused.stderr


@pytest.mark.deep
def test_jobs_of_others_keep_what_was_in_use_for_as_long_as_they_may_last(hidl: Hidl, tmp_path: Path) -> None:
    text = f"""
title: a centre
scheduler: slurm
launchers: [srun]
node_types: {{n: {{detect: true}}}}
partitions: {{p: {{node_type: n, max_wall: '02:00:00'}}}}
default_partition: p
install: {{root: {tmp_path / "root"}}}
"""
    site(hidl, "centre", text)
    made = []
    for packages in ([], ["attrs"], ["six"]):
        recipe(hidl, "mine", packages=dict.fromkeys(["mpich", "mpi4py", *packages], ""))
        made.append(
            Path(hidl.json("install", "mine", "--site", "centre", "--verify", "here")["installations"][0]["prefix"])
        )

    def kept() -> str | None:
        items = hidl.json("prune", "--site", "centre", "--older-than", "0", "--dry-run")["items"]
        return next(item["kept"] for item in items if item["path"] == str(made[0]))

    assert str(kept()).startswith("jobs may use it until ")
    then = time.time() - 7300
    os.utime(made[0], (then, then))
    assert kept() is None


def test_a_run_whose_installation_was_removed_says_so(hidl: Hidl, tmp_path: Path) -> None:
    recipe(hidl, "mine", packages={"mpich": "", "mpi4py": ""})
    hidl.json("install", "mine")
    program = tmp_path / "removes.py"
    program.write_text("import shutil, sys\nshutil.rmtree(sys.prefix)\nimport wave\nsys.exit(3)\n")
    failed = hidl("run", "--stack", "mine", "--ranks-per-node", "1", "--", "python", str(program))
    assert failed.returncode == 8
    assert "no longer exists" in failed.stderr


HOLDS = """
import errno, fcntl, sys, time
from pathlib import Path
from hidl_cli.stack import installation
def flock(descriptor, operation): raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
with installation.hold_lock(Path(sys.argv[1]), lambda line: print(line, flush=True)):
    seen = Path(sys.argv[2])
    assert not seen.exists()
    seen.touch()
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
    seen.unlink()
"""


def holder(tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "lock"), str(tmp_path / "seen"), str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_without_locks_in_the_file_system_one_waits_for_the_other(tmp_path: Path) -> None:
    waiting = [holder(tmp_path, 0.3) for _ in range(4)]
    told = [process.communicate(timeout=patience(60))[0] for process in waiting]
    assert [process.returncode for process in waiting] == [0, 0, 0, 0]
    assert all(text.endswith("held\n") for text in told)
    assert sum("waiting for hidl on" in text for text in told) >= 1
    assert list((tmp_path / "lock.d").iterdir()) == []


def test_without_locks_one_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    first = holder(tmp_path, 600)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    first.kill()
    first.communicate()
    (tmp_path / "seen").unlink()
    second = holder(tmp_path, 0)
    assert second.communicate(timeout=patience(60))[0].endswith("held\n")


def test_without_locks_one_on_another_host_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(installation, "_POLL_SECONDS", 0.01)
    owner = tmp_path / "lock.d" / "other:12"
    owner.parent.mkdir()
    owner.touch()

    def told(line: str) -> None:
        assert f"rm {owner}" in line
        owner.unlink()

    with hold_lock(tmp_path / "lock", told):
        assert [path.name for path in owner.parent.iterdir()] == [f"{os.uname().nodename}:{os.getpid()}"]
    until(lambda: not any(owner.parent.iterdir()), within=1)
