"""What the tests of the report share: a season of made-up runs, its page, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.analysis.changes import find_changes
from hidl_cli.record import Run
from hidl_cli.report.build import page_of
from hidl_cli.report.html import to_html
from hidl_cli.report.model import Page, load
from tests.report import example
from tests.report.html.browser import Tab, browser, program


@contextmanager
def _nights(root: Path) -> Iterator[example.Nights]:
    """Makes run directories below ``root``, with a configuration of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "STATE", "DATA", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(root / name.lower()))
        yield example.Nights(root / "state" / "hidl" / "runs", root / "config" / "hidl")


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[example.Nights]:
    """Makes run directories of a made-up site."""
    with _nights(tmp_path_factory.mktemp("report")) as nights:
        yield nights


@pytest.fixture
def nights(made_up: example.Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> example.Nights:
    """The same, with runs of the test's own, which are all that this user has."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return replace(made_up, root=tmp_path / "hidl" / "runs")


@pytest.fixture(scope="session")
def season(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Three weeks of nightlies; the stack is upgraded in the 15th. They are made once: tests only read them."""
    with _nights(tmp_path_factory.mktemp("season")) as nights:
        return example.season(nights, length=21)


@pytest.fixture(scope="session")
def page(season: list[Run]) -> Page:
    """The page about them."""
    return page_of(
        [load(run) for run in season],
        detect=find_changes,
        generated="2026-10-20T06:00:00+00:00",
        hidl="1.2.3",
        selection="the season",
    )


@pytest.fixture(scope="session")
def html(page: Page) -> str:
    """The same as HTML."""
    return to_html(page)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A tab of a real Chromium."""
    if program() is None:
        pytest.skip("NO CHROMIUM HERE: the report was not looked at in a browser (apt-get install chromium)")
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found
