"""The order in which the tests run in parallel."""

from __future__ import annotations

import pytest

from tests.side_by_side import KILLED, LONG, REPOSITORY, USED, WHOLE, _rank, _unit


@pytest.mark.parametrize("unit", [*WHOLE, *LONG])
def test_what_is_named_is_a_unit(unit: str) -> None:
    file = REPOSITORY / unit
    assert unit == _unit(str(next(file.rglob("test_*.py")) if file.is_dir() else file).removeprefix(f"{REPOSITORY}/"))


def test_the_clusters_units_are_first_and_then_the_longest() -> None:
    units = ["tests/test_pure.py", "tests/test_real.py", *reversed(LONG), USED, KILLED]
    ordered = sorted(units, key=lambda unit: _rank(unit, {"tests/test_real.py"}))
    assert ordered == [KILLED, USED, *LONG, "tests/test_real.py", "tests/test_pure.py"]


@pytest.mark.parametrize(
    ("file", "unit"),
    [
        ("tests/schedulers/slurm/test_slurm_real.py", KILLED),
        ("tests/tutorials/test_staff.py", USED),
        ("tests/schedulers/pbs/test_pbs_standin.py", "tests/schedulers/pbs/test_pbs_standin.py"),
    ],
)
def test_only_what_uses_the_cluster_is_of_its_units(file: str, unit: str) -> None:
    assert _unit(f"{file}::test_x") == unit
