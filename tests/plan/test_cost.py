"""What a run costs at most."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.plan.cost import Estimate, cost_limits, estimate, format_estimate, limit_cost
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.site.load import load_site


def estimated(**keys: Any) -> tuple[Estimate, Plan]:
    request = {"site": "frontera-rtx", "nodes": 8, "prefix": "/apps", "hypothetical": True} | keys
    plan = prepare(RunRequest(command=["python", "train.py"], directory="/work", **request))
    return estimate(plan, load_site(plan.site).partition(plan.partition)), plan


@pytest.fixture(autouse=True)
def no_configuration(config: object) -> None:
    """Shipped sites alone."""


def test_it_is_node_hours_times_the_sites_charge() -> None:
    found, _ = estimated(time=1800)
    assert (found.node_hours, found.charge, found.cost) == (4.0, 3.0, 12.0)


def test_a_study_pays_for_its_largest_size_all_the_time() -> None:
    assert estimated(nodes=1, scale="1,2,16")[0].node_hours == 16.0


def test_the_limits_are_those_for_a_job_of_this_size() -> None:
    found, _ = estimated(site="frontier", nodes=100)
    assert (found.max_nodes, found.max_seconds) == (9472, 6 * 3600)


def test_without_a_time_limit_there_is_no_bound() -> None:
    found, plan = estimated(site="local", nodes=1)
    assert found.cost is None
    assert "no upper bound" in format_estimate(found, plan)[0]


def test_people_read_it_in_three_lines() -> None:
    assert format_estimate(*estimated()) == [
        "partition rtx of site frontera-rtx: 8 node(s) for at most 01:00:00 = at most 8 node-hours",
        "cost: 3 per node-hour = at most 24 of the site's units",
        "limits: 1 to 16 nodes, 48:00:00 for a job of this size: allowed",
    ]


def test_a_run_of_several_jobs_pays_for_each() -> None:
    found, plan = estimated(until_done=True, max_jobs=3)
    assert (found.jobs, found.node_hours, found.cost) == (3, 24.0, 72.0)
    assert format_estimate(found, plan)[0] == (
        "partition rtx of site frontera-rtx: at most 3 jobs on 8 node(s) for at most 01:00:00 each = "
        "at most 24 node-hours"
    )


@pytest.mark.parametrize(
    ("keys", "node_hours", "cost", "shown"),
    [
        ({"max_node_hours": 10}, 10.0, 30.0, "(--max-node-hours 10)"),
        ({"max_cost": 60}, 20.0, 60.0, "(--max-cost 60)"),
        ({"max_node_hours": 10, "max_cost": 60}, 10.0, 30.0, "(--max-node-hours 10, --max-cost 60)"),
        ({"max_node_hours": 1e6}, 160.0, 480.0, "(--max-node-hours 1e+06)"),
    ],
)
def test_a_limit_bounds_all_jobs(keys: dict[str, float], node_hours: float, cost: float, shown: str) -> None:
    found, plan = estimated(until_done=True, **keys)
    assert (found.node_hours, found.cost) == (node_hours, cost)
    assert format_estimate(found, plan)[0].endswith(shown)


def test_a_job_that_shares_its_node_uses_a_part_of_it() -> None:
    _, plan = estimated(until_done=True, max_cost=60)
    shared = replace(plan, allocation=replace(plan.allocation, share=0.25))
    assert [each.per_second for each in cost_limits(shared)] == [pytest.approx(8 * 0.25 * 3 / 3600)]
    assert limit_cost(shared, None, 6).max_cost == 6
    with pytest.raises(UsageError, match="a single job may use 6 of the site's units"):
        limit_cost(shared, None, 5.9)


@pytest.mark.parametrize("keys", [{"max_cost": math.nan}, {"max_node_hours": math.inf}])
def test_a_limit_is_finite(keys: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"invalid --max-(cost|node-hours) (nan|inf): must be finite"):
        estimated(until_done=True, **keys)
