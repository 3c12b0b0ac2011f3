"""The shipped advisories: what they hold, and what they say of versions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from hidl_cli import paths
from hidl_cli.doctor.examine import SecurityAdvisory, find_advisories, load_advisories
from hidl_cli.stack import lock

ADVISORIES = load_advisories().advisories
LOCKS = [lock.read(file) for file in sorted((paths.shipped() / "recipes" / "locks").glob("*.txt"))]
#: What no newer version fixes today, by package.
OPEN = {"dask": ["CVE-2026-95897"]}
#: What newer versions fix that have no kernels for old GPUs.
OPEN_FOR_OLD_GPUS = {"torch": ["CVE-2026-4538"]}


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda advisory: advisory.id)
def test_what_is_fixed_is_not_affected_and_what_was_before_is(advisory: SecurityAdvisory) -> None:
    if advisory.fixed is not None:
        assert not advisory.affects(advisory.fixed)
    for specifier in advisory.affected:
        first = re.search(r">=([0-9.]+)", specifier)
        assert advisory.affects(first[1] if first else "0.1")


def test_each_advisory_is_there_once() -> None:
    ids = [advisory.id for advisory in ADVISORIES]
    assert len(ids) == len(set(ids))


def test_each_package_is_one_that_hidls_stacks_hold() -> None:
    held = {package.name for each in LOCKS for package in each.packages} | {"horovod", "tensorflow"}
    assert {package for advisory in ADVISORIES for package in advisory.packages} <= held


@pytest.mark.parametrize("held", LOCKS, ids=lambda held: held.filename)
def test_todays_locks_hold_nothing_that_a_newer_version_fixes(held: lock.Lock) -> None:
    found = find_advisories({package.name: package.version for package in held.packages})
    known = OPEN | (OPEN_FOR_OLD_GPUS if held.gpu else {})
    assert {name: [each.id for each in advisories] for name, _, advisories in found} == {
        name: ids for name, ids in known.items() if held.version(name)
    }


@pytest.mark.parametrize(
    ("package", "version", "expected"),
    [
        ("torch", "2.5.1+cpu", ["CVE-2026-4538", "CVE-2025-32434"]),
        ("torch", "2.13.0+cpu", []),
        ("keras", "3.13.1", ["CVE-2026-12480"]),
        ("keras", "3.12.2", ["CVE-2026-1669"]),
        ("keras", "2.15.0", []),
        ("urllib3", "1.26.18", ["CVE-2026-21441", "CVE-2025-66471", "CVE-2025-66418"]),
        ("horovod", "0.28.1", ["CVE-2024-10190"]),
        ("no-such-package", "1", []),
        ("torch", "main", []),
    ],
)
def test_a_version_is_held_against_the_ranges(package: str, version: str, expected: list[str]) -> None:
    assert [each.id for _, _, found in find_advisories({package: version}) for each in found] == expected


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=3))
def test_a_version_after_the_fix_is_never_affected(numbers: list[int]) -> None:
    version = ".".join(map(str, numbers))
    for advisory in ADVISORIES:
        if advisory.fixed is not None and Version(version) >= Version(advisory.fixed):
            assert not advisory.affects(version)
