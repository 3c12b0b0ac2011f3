"""The ``# flux:`` lines of job scripts."""

from __future__ import annotations

from typing import Any

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.schedulers.flux import header
from hidl_cli.site.schema import Policies


def lines(policies: dict[str, Any] | None = None, **asked: Any) -> tuple[str, ...]:
    allocation = {"job_name": "hidl-resnet50", "nodes": 4, "ranks_per_node": 4, "time_limit": 5400.0} | asked
    return header(Allocation(**allocation), Policies.model_validate(policies or {}))


def test_nodes_are_requested_whole() -> None:
    found = lines(
        {"exclusive": True, "directives": ["--setattr=system.bank=x"]},
        queue="pbatch",
        account="guests",
        constraint="mi300a&-gpu",
        gpus_per_node=4,
    )
    assert found == (
        "# flux: --job-name=hidl-resnet50",
        "# flux: --queue=pbatch",
        "# flux: --time-limit=5400s",
        "# flux: --bank=guests",
        "# flux: --requires=mi300a&-gpu",
        "# flux: --nodes=4",
        "# flux: --exclusive",
        "# flux: --output=flux.log",
        "# flux: --setattr=system.bank=x",
    )


def test_what_the_site_refuses_is_left_out() -> None:
    policies = dict.fromkeys(("partition", "time", "account", "constraint"), "never")
    assert lines(policies, queue="pbatch", account="guests", constraint="x") == (
        "# flux: --job-name=hidl-resnet50",
        "# flux: --nodes=4",
        "# flux: --output=flux.log",
    )


@pytest.mark.parametrize("asked", [{"queue": "a b"}, {"account": "x\n# flux: -N9"}, {"qos": "x"}, {"reservation": "r"}])
def test_an_invalid_value_is_an_error(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        lines(**asked)
