"""Which checks a validation leaves out on a site, and what it gives as the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.validate import session
from hidl_cli.validate.bridge import CheckLocation
from hidl_cli.validate.reframe import ListedCase


@pytest.fixture
def on_frontera(config: Path) -> session.Validation:
    """A validation on Frontera's default partition, which takes jobs of 3 to 512 nodes."""
    return session.prepare(session.ValidationRequest(CheckLocation("frontera")))


def test_a_scale_that_the_partition_does_not_allow_is_named_with_a_partition_that_does(
    on_frontera: session.Validation,
) -> None:
    tests = [ListedCase(f"kmeans_smoke %scale={scale}", scale, None) for scale in ("2-nodes", "1-node")]
    assert session.reasons_left_out(on_frontera, tests) == {
        "kmeans_smoke": "2 case(s) of scale 1-node, 2-nodes, which the partition does not allow; use --partition flex"
    }


def test_otherwise_a_trait_or_a_stack_is_missing(on_frontera: session.Validation) -> None:
    tests = [ListedCase("osu_smoke %scale=4-nodes", "a", None), ListedCase("mine", "b", None)]
    reasons = session.reasons_left_out(on_frontera, tests)
    assert reasons == dict.fromkeys(("mine", "osu_smoke"), "1 case(s) that require a missing feature or stack")
