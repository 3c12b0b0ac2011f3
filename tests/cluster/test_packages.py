"""What a cluster needs of the machine, and what is said where that is not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hidl_twin import packages


def test_where_there_is_nothing_all_packages_are_missing(tmp_path: Path) -> None:
    wanted = [*packages.PROGRAMS, *packages.ACCOUNTING_PROGRAMS]
    assert [name for name in packages.missing(accounting=True, path=str(tmp_path)) if name != "libpmix-dev"] == wanted


def test_without_accounting_no_database_is_needed(tmp_path: Path) -> None:
    assert "slurmdbd" not in packages.missing(accounting=False, path=str(tmp_path))


def test_a_package_whose_programs_come_from_elsewhere_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "munged").touch(mode=0o755)
    assert "munge" not in packages.missing(accounting=True, path=str(tmp_path))


def test_who_is_not_root_is_reported_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    obstacle = packages.obstacle(accounting=True)
    assert obstacle is not None
    assert (obstacle.exit_code, "requires root" in obstacle.message) == (4, True)


def test_another_system_than_linux_is_reported_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    obstacle = packages.obstacle(accounting=True)
    assert obstacle is not None
    assert (obstacle.exit_code, "darwin" in obstacle.message) == (4, True)
