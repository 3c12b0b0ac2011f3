"""The micro-benchmarks as checks: those in Python run with the stack mpi, those in C wait for the stack omb."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Hidl
from tests.tiers import deep
from tests.validate.conftest import cases


@pytest.mark.deep
@pytest.mark.parametrize(
    ("check", "metric", "unit"),
    [("osu_latency", "latency", "us"), deep("osu_bw", "bandwidth", "MB/s"), deep("osu_allreduce", "latency", "us")],
)
def test_it_passes_and_reports_its_figure(hidl_with: Callable[..., Hidl], check: str, metric: str, unit: str) -> None:
    document = hidl_with("mpi").json("validate", "--check", check)

    (case,) = cases(document).values()
    assert (case["verdict"], case["figures"][metric][1]) == ("pass", unit)
    assert any("suite=c" in name for name in document["left_out"])
