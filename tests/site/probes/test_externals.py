"""Versions as programs print them, and as site files give them."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes import software
from tests.site.recording import DIRECTORY, RecordedHost


@pytest.mark.parametrize(
    ("name", "printed", "expected"),
    [
        ("openssl", "OpenSSL 1.1.1k  FIPS 25 Mar 2021", "1.1.1k"),
        ("openssl", "OpenSSL 3.0.15 3 Sep 2024 (Library: OpenSSL 3.0.15 3 Sep 2024)", "3.0.15"),
        ("perl", "v5.36.0", "5.36.0"),
        ("slurm", "slurm 23.11.0-0rc1", "23.11.0"),
        ("slurm", "slurm-wlm 22.05.8", "22.05.8"),
        ("cuda", "Cuda compilation tools, release 12.4, V12.4.131", "12.4"),
        ("cmake", "cmake version 3.30.0-rc2", "3.30.0-rc2"),
        ("hwloc", "hwloc-info 2.10.0a1-git", "2.10.0a1"),
        ("hip", "6.2.41134-65d174c3e", "6.2.41134"),
        ("ninja", "no version", None),
    ],
)
def test_a_version_may_have_letters(name: str, printed: str, expected: str | None) -> None:
    words = " ".join(("it", *software.VERSION_COMMANDS[name][1:]))
    host = RecordedHost(DIRECTORY / "none", programs={"it": "/it"}, answers={words: printed})
    assert software.program_version(host, name, "/it") == expected


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1.1.1k", "1.1.1k", True),
        ("1.1.1", "1.1.1k", True),
        ("1.1.1l", "1.1.1k", False),
        ("2.3.7", "2.3.7-1", True),
        ("5", "5.0.2", True),
        ("5.0.2", "5.0.20", False),
        ("5.0.0", "5.0.0rc1", False),
        ("5.0.0rc1", "5.0.0-rc1", True),
        ("5.0.0rc1", "5.0.0rc2", False),
        ("9.4", "9.4p1", True),
    ],
)
def test_versions_are_compared_as_far_as_both_go(one: str, other: str, same: bool) -> None:
    assert software.same_version(one, other) is same
    assert software.same_version(other, one) is same
