"""The tier of each test, marked from what it needs: pure, real, alone or deep; what a failure of it may be excused by.

``pure``: no rank, no Slurm, no installation. ``real``: those. ``alone``: asserts on time or statistics, or needs all
cores. ``deep``: sweeps, long waits, and what takes long over a way that others go too: for the night. Only the last two
are marked by hand; ``real`` by hand where a test starts what it needs through the fixture ``hidl``.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import SLOWNESS
from tools.run_tests import KNOWN, TIER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Each goes before those left of it: a module is ``real``, one of its tests ``deep``.
TIERS = ("pure", "real", "alone", "deep")
#: Fixtures that bring up a scheduler or a stand-in of one, install a stack or start ranks.
REAL_FIXTURES = frozenset(
    {"cache", "cluster", "flux", "lsf", "pbs", "second_cluster", "spack", "stack_prefix", "summit", "twin"}
)
#: Tests known to be flaky, each with its cause and the day until which it may stay here.
QUARANTINE = Path(__file__).parent / "flaky.toml"
#: Quarantine is short, and small.
MOST_DAYS, MOST_ENTRIES = 21, 10


def deep(*values: object) -> Any:
    """One set of values of ``pytest.mark.parametrize`` that is for the night."""
    return pytest.param(*values, marks=pytest.mark.deep)


def tier(item: pytest.Item) -> str:
    """The tier of this test: the last of those that it is marked with."""
    return max((name for name in TIERS if item.get_closest_marker(name)), key=TIERS.index)


def quarantined(file: Path = QUARANTINE) -> dict[str, dict[str, Any]]:
    """The entries of the quarantine, by the id of their test."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("test", [])
    return {entry["id"]: entry for entry in entries}


def faults(text: str, today: date) -> list[str]:
    """What is wrong with the text of a quarantine on this day."""
    entries = tomllib.loads(text).get("test", [])
    found = [f"{len(entries)} entries; {MOST_ENTRIES} at most"] if len(entries) > MOST_ENTRIES else []
    ids = [entry.get("id", "") for entry in entries]
    found += [f"{each}: a second entry" for each in sorted({each for each in ids if ids.count(each) > 1})]
    for entry in entries:
        name = entry.get("id") or "an entry without an id"
        missing = [key for key in ("id", "cause", "evidence", "expires") if not entry.get(key)]
        if missing:
            found.append(f"{name}: without {', '.join(missing)}")
        elif entry["cause"] not in ("load", "order", "port", "clock", "peer"):
            found.append(f"{name}: the cause is load, order, port, clock or peer")
        elif not 0 <= (entry["expires"] - today).days <= MOST_DAYS:
            found.append(f"{name}: expires {entry['expires']}; today is {today}, at most {MOST_DAYS} days before")
    return found


@cache
def _known(file: str) -> dict[str, list[str]]:
    """The tiers of the tests of each file of tests, as an earlier phase of tools/run_tests has noted them."""
    found: dict[str, list[str]] = json.loads(Path(file).read_text(encoding="utf-8")) if Path(file).is_file() else {}
    return found


def _note(items: list[pytest.Item], file: Path) -> None:
    """Let later phases know; each process of this one finds the same."""
    tiers: dict[str, set[str]] = {}
    for item in items:
        tiers.setdefault(str(item.path), set()).add(tier(item))
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps({path: sorted(names) for path, names in tiers.items()}), encoding="utf-8")
    new.replace(file)


@pytest.hookimpl
def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no file that is known to have no test of the chosen tier; files that are named are imported."""
    chosen_tier, file = os.environ.get(TIER), os.environ.get(KNOWN)
    if not chosen_tier or not file:
        return None
    tiers = _known(file).get(str(collection_path))
    return True if tiers is not None and chosen_tier not in tiers else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and scale its time limit by the slowness of this machine."""
    sick = quarantined() if QUARANTINE.is_file() else {}
    for item in items:
        needs = not REAL_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        if item.nodeid in sick:
            item.add_marker("alone")
        elif not any(item.get_closest_marker(name) for name in TIERS):
            item.add_marker("real" if needs else "pure")
        if (seconds := limit(item)) and SLOWNESS > 1:
            item.add_marker(pytest.mark.timeout(seconds * SLOWNESS), append=False)
    if os.environ.get(TIER) == TIERS[0] and KNOWN in os.environ:
        _note(items, Path(os.environ[KNOWN]))


def chosen(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """The values of a parameter that are asked for in this module: those of deep tests only where these run.

    A fixture that makes all cases at once makes no others.
    """
    parameters = (
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec")
    )
    return list(dict.fromkeys(each[parameter] for each in parameters if parameter in each))


def limit(item: pytest.Item) -> float:
    """The seconds after which pytest-timeout ends this test; 0: never."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout") or 0)
