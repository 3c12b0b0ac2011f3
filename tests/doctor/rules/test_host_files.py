"""Rules about file systems, on recorded facts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hidl_cli.doctor.rules.host import RULES, FileSystems, Mount, Quota, UsedDirectory, probe, read_mounts
from hidl_cli.site.probes.host import ThisHost
from tests.doctor.cases import Case, has_both_ways, named, severity
from tests.doctor.machines import context, host, installed

MOUNTS = """/dev/sda1 / ext4 rw,relatime 0 0
nas:/home /home nfs4 rw,nosuid 0 0
tmpfs /home/a/a\\040b tmpfs rw,noexec 0 0
tmpfs /scratch tmpfs rw 0 0
mds@tcp:/fs /scratch lustre rw,flock 0 0
"""
#: As quota(1) and lfs-quota(1) show it.
QUOTA = """Disk quotas for user a (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      nas:/home  950000* 900000 1000000 1732000000   12345       0   20000       0
      /dev/sda1       8       0       0       0       2       0       0       0
"""
LUSTRE = """       /scratch  950000       0 1000000       -   12345       0       0       -
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A recorded machine with these mounts."""
    file = tmp_path / "root" / "proc" / "self" / "mounts"
    file.parent.mkdir(parents=True)
    file.write_text(MOUNTS)
    return tmp_path


def at_home(root: Path, home: str, *programs: str, **answers: str) -> FileSystems:
    commands = {"quota": "sh -c quota -w -p || true", "lfs": f"lfs quota -q -u a {home}"}
    answered = {commands[name]: text for name, text in answers.items()}
    return probe(context(host(root, *programs, answers=answered, HOME=home, USER="a")))


def test_blanks_in_the_names_of_mounts_are_octal_numbers() -> None:
    assert read_mounts(MOUNTS)[2] == Mount("tmpfs", "/home/a/a b", "tmpfs", ("rw", "noexec"))


@pytest.mark.parametrize(
    ("prefix", "point"),
    [("/home/a/a b/stacks", "/home/a/a b"), ("/home/ab", "/home"), ("/opt", "/")],
)
def test_a_directory_lies_on_the_longest_mount_above_it(root: Path, prefix: str, point: str) -> None:
    place = probe(context(host(root), installation=installed(Path(prefix)))).installations
    assert place is not None
    assert place.mount == next(mount for mount in read_mounts(MOUNTS) if mount.point == point)


def test_what_is_mounted_last_covers_what_was_there(root: Path) -> None:
    place = probe(context(host(root), installation=installed(Path("/scratch/x")))).installations
    assert place is not None
    assert place.mount == Mount("mds@tcp:/fs", "/scratch", "lustre", ("rw", "flock"))


def test_the_quota_of_the_file_system_that_home_lies_on(root: Path) -> None:
    assert at_home(root, "/home/a", "quota", quota=QUOTA).quota == Quota(950000, 900000, 12345, 20000)


def test_a_file_system_without_limits_is_never_full(root: Path) -> None:
    found = at_home(root, "/opt/a", "quota", quota=QUOTA).quota
    assert found == Quota(8, None, 2, None)
    assert found.fullness == 0


def test_lustre_has_a_tool_of_its_own(root: Path) -> None:
    assert at_home(root, "/scratch/a", "lfs", lfs=LUSTRE).quota == Quota(950000, 1000000, 12345, None)


@pytest.mark.parametrize("said", ["Disk quotas for user a (uid 1000): none\n", "", "quota: error 5\n"])
def test_no_quota_is_not_a_fault(root: Path, said: str) -> None:
    assert at_home(root, "/home/a", "quota", quota=said).quota is None


def test_what_is_left_is_what_the_kernel_says(tmp_path: Path) -> None:
    place = probe(context(ThisHost(), installation=installed(tmp_path))).installations
    status = os.statvfs(tmp_path)
    assert place is not None
    assert place.free_mib == pytest.approx(status.f_bavail * status.f_frsize / 2**20, rel=0.05)


def quota(kib: int, files: int = 10, limit: int | None = 1000) -> FileSystems:
    return FileSystems(home="/home/a", quota=Quota(kib, limit, files, 100))


def runs(*options: str, free: int | None = 5000) -> FileSystems:
    return FileSystems(runs=UsedDirectory("run directories", "/home/a/runs", Mount("x", "/home", "nfs", options), free))


def stacks(*options: str, free: int | None = 5000) -> FileSystems:
    return FileSystems(
        installations=UsedDirectory("the installations", "/home/a/s", Mount("x", "/home", "nfs", options), free)
    )


CASES: list[Case] = [
    ("HD060", "nine tenths of the space", quota(900), "warning"),
    ("HD060", "all of the space", quota(1000), "error"),
    ("HD060", "nearly all files", quota(1, files=99), "warning"),
    ("HD060", "files alone are limited", quota(10**9, files=100, limit=None), "error"),
    ("HD060", "half", quota(500), None),
    ("HD060", "no quota is known", FileSystems(), None),
    ("HD061", "noexec", stacks("rw", "noexec"), "error"),
    ("HD061", "executable", stacks("rw", "nosuid"), None),
    ("HD061", "the runs alone", runs("noexec"), None),
    ("HD065", "little is left", runs(free=1000), "warning"),
    ("HD065", "next to nothing", runs(free=10), "error"),
    ("HD065", "nothing for installations", stacks(free=0), "warning"),
    ("HD065", "enough", runs(), None),
    ("HD065", "df does not answer", runs(free=None), None),
    ("HD066", "read-only", runs("ro", "relatime"), "error"),
    ("HD066", "written to", runs("rw"), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(RULES, CASES)


def test_two_places_on_one_file_system_are_one_finding() -> None:
    both = FileSystems(installations=stacks(free=10).installations, runs=runs(free=10).runs)
    assert [one.rule for one in RULES.findings(both)] == ["HD065"]
