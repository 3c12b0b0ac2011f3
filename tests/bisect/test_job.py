"""The job that holds all configurations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hidl_cli.bisect.journal import Bisect, Question
from hidl_cli.bisect.verdict import plan_job, script_of
from hidl_cli.errors import UsageError
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.site.load import load_site
from tests.bisect.nights import metric, planned, side
from tests.conftest import SHELLCHECK

pytestmark = pytest.mark.usefixtures("config")


def question(site: str, **options: object) -> Question:
    plan = planned(site=site, **options)
    return Question.between(side(plan), side(plan), metric())


def test_it_requests_the_good_runs_nodes_for_the_asked_time() -> None:
    asked = question("frontera", nodes=4, partition="normal")
    plan = plan_job(asked, load_site("frontera"), AllocationOptions(account="ABC", time=3600))
    assert {"#SBATCH --nodes=4", "#SBATCH --partition=normal", "#SBATCH --account=ABC"} <= {*plan.header}
    assert any(line.endswith("1:00:00") for line in plan.header)


@pytest.mark.parametrize(("site", "nodes"), [("local", 1), ("frontera", 4)])
def test_its_script_starts_the_search_and_nothing_else(site: str, nodes: int, tmp_path: Path) -> None:
    asked = question(site, nodes=nodes)
    script = script_of(
        plan_job(asked, load_site(site), AllocationOptions(account="A")), Bisect(tmp_path / "a b"), 0.95, 20
    )
    assert f"-m hidl_cli.bisect.search '{tmp_path}/a b' 0.95 20 < /dev/null &" in script
    assert "activate.sh" not in script
    checked = subprocess.run([SHELLCHECK, "-"], input=script, capture_output=True, text=True, check=False)
    assert checked.stdout == ""


def test_runs_of_another_site_are_refused() -> None:
    with pytest.raises(UsageError, match="was on site local, not frontera") as caught:
        plan_job(question("local"), load_site("frontera"), AllocationOptions())
    assert "--site local" in str(caught.value.hint)
