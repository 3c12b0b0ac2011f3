"""What a run costs at most."""

from __future__ import annotations

from typing import Any

import pytest

from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.planning import Estimate, estimate, format_estimate
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
