"""Curves of several MPI libraries and sites on one picture, and maps of pairs of nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from hidl_cli.plan.launch_plan import plan_of
from hidl_cli.plan.options import RunRequest
from hidl_cli.record import Run
from hidl_cli.report.build import page_of
from hidl_cli.report.html import to_html
from hidl_cli.report.model import Page, load
from tests.report import example
from tests.report.html.browser import Tab

PINGPONG = RunRequest("pingpong", nodes=2)


def page_about(*runs: Run, baseline: list[Run] | None = None) -> Page:
    return page_of(
        [load(run) for run in runs],
        detect=lambda values, days: (),
        generated="2026-10-20T06:00:00+00:00",
        hidl="1.2.3",
        selection="these",
        baseline=None if baseline is None else [load(run) for run in baseline],
    )


@pytest.fixture
def here(nights: example.Nights) -> Run:
    """A run on the site's own MPI library."""
    return nights.run(PINGPONG, 0, nights.pingpong())


@pytest.fixture
def other_mpi(nights: example.Nights, here: Run) -> Run:
    """The same on another MPI library, slower."""
    mpi = replace(plan_of(here).mpi, name="openmpi", family="openmpi", version="5.0")
    return nights.run(PINGPONG, 1, nights.pingpong(start=2.6), mpi=mpi)


@pytest.fixture
def other_site(nights: example.Nights) -> Run:
    """The same at another site."""
    return nights.run(PINGPONG, 2, nights.pingpong(start=1.1), site="elsewhere")


class TestComparisons:
    def test_two_mpi_libraries_share_a_picture_for_each_metric(self, here: Run, other_mpi: Run) -> None:
        found = page_about(here, other_mpi).comparisons
        assert [each.metric for each in found] == ["latency", "bandwidth"]
        assert [name for name, _ in found[0].lines] == ["mvapich2-gdr 2.3.7", "openmpi 5.0"]

    def test_lines_are_called_by_what_differs_alone(self, here: Run, other_site: Run) -> None:
        (latency, _) = page_about(here, other_site).comparisons
        assert [name for name, _ in latency.lines] == ["example/compute", "elsewhere/compute"]

    def test_the_newest_run_of_each_is_drawn(self, nights: example.Nights, here: Run, other_mpi: Run) -> None:
        newer = nights.run(PINGPONG, 3, nights.pingpong())
        (latency, _) = page_about(here, other_mpi, newer).comparisons
        assert {line.run for _, line in latency.lines} == {other_mpi.id, newer.id}

    def test_runs_of_one_kind_are_not_comparison(self, nights: example.Nights, here: Run) -> None:
        assert page_about(here, nights.run(PINGPONG, 1, nights.pingpong())).comparisons == ()

    def test_another_number_of_nodes_is_another_measurement(self, nights: example.Nights, here: Run) -> None:
        assert page_about(here, nights.run(RunRequest("pingpong", nodes=4), 1, nights.pingpong())).comparisons == ()

    def test_every_size_is_reported_with_the_difference_from_the_first(self, here: Run, other_mpi: Run) -> None:
        html = to_html(page_about(here, other_mpi))
        assert '<th scope="col">openmpi 5.0 \N{MINUS SIGN} mvapich2-gdr 2.3.7</th>' in html


class TestBaseline:
    def test_a_curve_is_held_against_another_site(self, here: Run, other_site: Run) -> None:
        baseline = page_about(here, baseline=[other_site]).curves[0].baseline
        assert baseline is not None
        assert baseline.run == other_site.id

    def test_of_several_the_newest_that_measured_the_same(
        self, nights: example.Nights, here: Run, other_mpi: Run
    ) -> None:
        larger = nights.run(RunRequest("pingpong", nodes=4), 5, nights.pingpong())
        baseline = page_about(here, baseline=[other_mpi, here, larger]).curves[0].baseline
        assert baseline is not None
        assert baseline.run == other_mpi.id

    def test_without_any_that_measured_the_same_there_is_none(self, nights: example.Nights, here: Run) -> None:
        larger = nights.run(RunRequest("pingpong", nodes=4), 5, nights.pingpong())
        assert page_about(here, baseline=[larger]).curves[0].baseline is None


class TestPairs:
    @pytest.fixture
    def page(self, nights: example.Nights) -> Page:
        """Eight nodes, of which the fifth is slow."""

        def measure(_: object) -> example.Metrics:
            pairs = list(combinations([f"gpu{number:02d}" for number in range(1, 9)], 2))
            rates = [nights.near(12000 * (0.5 if "gpu05" in pair else 1)) for pair in pairs]
            keys = {"pairs": [list(pair) for pair in pairs]}
            latencies = [nights.near(1.6) for _ in pairs]
            return [
                {"name": "latency", "value": 1.6, "unit": "us", "samples": latencies, **keys},
                {"name": "bandwidth", "value": 12000.0, "unit": "MB/s", "samples": rates, **keys},
            ]

        return page_about(nights.run(RunRequest("omb-pairs", nodes=8), 0, measure))

    def test_a_map_shows_every_pair_against_the_median_pair(self, page: Page) -> None:
        _, bandwidth = page.pair_maps
        assert bandwidth.names == tuple(f"gpu{number:02d}" for number in range(1, 9))
        assert bandwidth.cells[0][0] is None
        assert bandwidth.cells[0][4] == pytest.approx(-0.5, abs=0.03)

    def test_the_slow_node_is_named_with_what_to_exclude(self, page: Page) -> None:
        latency, bandwidth = page.pair_maps
        assert (latency.exclude, bandwidth.exclude) == ("", "gpu05")
        assert page.standings[0].outcome.value == "fail"

    def test_it_is_noticed_on_top_of_the_page(self, page: Page) -> None:
        assert any("gpu05" in sentence for sentence in page.noticed())

    def test_a_browser_shows_it_without_errors(self, page: Page, tab: Tab, tmp_path: Path) -> None:
        file = tmp_path / "report.html"
        file.write_text(to_html(page), encoding="utf-8")
        tab.open(file, width=360)
        assert tab.complaints() == []
        assert tab.value("document.documentElement.scrollWidth <= window.innerWidth")
