"""The page as text: one file that asks for nothing, in which hostile words stay words."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hidl_cli.plan.launch_plan import Step
from hidl_cli.plan.options import RunRequest
from hidl_cli.profile import CAUSES
from hidl_cli.record import State
from hidl_cli.report.build import page_of
from hidl_cli.report.html import is_report, shade, to_html
from hidl_cli.report.model import Page, RankTimes, ReportedLoss, ReportedProfile, ReportedWaterfall, load
from tests.report import example
from tests.report.html.browser import Tab

HOSTILE = [
    "</script><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>' onfocus='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "a\x00b\x1b[31mc\u202ed",
    "<!-- ]]> &lt;b&gt;",
]
VOID = {"meta", "link", "br", "input", "img", "hr"}


class Elements(HTMLParser):
    """All elements of a page with their attributes; every one must be closed in its turn."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_it_is_well_formed(html: str) -> None:
    assert len(Elements(html).found) > 1000


def test_nothing_in_it_is_fetched_from_anywhere(html: str) -> None:
    addresses = {
        value
        for _, attributes in Elements(html).found
        for name, value in attributes.items()
        if name in {"src", "href", "action", "data", "srcset", "poster", "xlink:href"} and value is not None
    }
    assert {address for address in addresses if not address.startswith("#")} == {"data:,"}
    assert not re.search(r"url\(|@import", html)


def test_every_link_leads_to_something(html: str) -> None:
    elements = Elements(html).found
    ids = {attributes["id"] for _, attributes in elements if "id" in attributes}
    links = {(attributes.get("href") or "")[1:] for tag, attributes in elements if tag == "a"}
    assert links <= ids


def test_no_id_is_there_twice(html: str) -> None:
    ids = [attributes["id"] for _, attributes in Elements(html).found if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_its_policy_allows_its_own_script_and_style_alone(html: str) -> None:
    policy = next(a["content"] or "" for tag, a in Elements(html).found if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_no_element_has_a_style_or_a_handler_of_its_own(html: str) -> None:
    names = {name for _, attributes in Elements(html).found for name in attributes}
    assert [name for name in names if name == "style" or name.startswith("on")] == []


def test_it_is_small(html: str, page: Page) -> None:
    assert len(html.encode()) / len(page.runs) < 15_000  # 50 runs: below 750 kB


def test_it_is_the_same_whenever_it_is_made(html: str, page: Page, tmp_path: Path) -> None:
    assert to_html(page) == html
    (tmp_path / "page.html").write_text(html)
    assert is_report(tmp_path / "page.html")


def test_an_empty_page_says_so(page: Page) -> None:
    nothing = replace(page, standings=(), scalings=(), trends=(), curves=(), heat_maps=(), runs=())
    assert "There is no run to report on." in to_html(nothing)


@pytest.mark.parametrize(
    ("deviation", "name"),
    [(0.0, "even"), (0.014, "even"), (-0.016, "worse-1"), (0.05, "better-2"), (-0.08, "worse-3"), (-0.9, "worse-3")],
)
def test_a_cell_is_coloured_by_steps_of_three_per_cent(deviation: float, name: str) -> None:
    assert shade(deviation) == name


@pytest.fixture(scope="module", params=HOSTILE)
def hostile(request: pytest.FixtureRequest, made_up: example.Nights, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page about runs whose every free text is hostile."""
    word: str = request.param
    nights = replace(made_up, root=tmp_path_factory.mktemp("hostile"))
    carried = word.replace("\x00", "")  # what an argument can carry
    study = RunRequest("kmeans", scale="ranks=1,2", repeat=3, parameters=[f"note={carried}"])
    hosts = (word, "gpu02")
    runs = [
        nights.run(study, 0, nights.clustering(), hosts=hosts, warnings=(word,), modules=(word,), hidl=word),
        nights.run(study, 1, nights.clustering(), lock=word, partition=word),
        nights.run(study, 2, nights.clustering(), hosts=hosts, state=State.FAILED, stderr=carried),
        nights.run(RunRequest("matmul", nodes=2), 3, named(word), hosts=hosts),
    ]
    verdict = runs[0].document("verdict") or {}
    runs[0].write("verdict", {**verdict, "reason": carried, "hint": carried})
    loaded = [load(run) for run in runs]
    page = page_of(loaded, detect=lambda v, d: [1] if len(v) > 1 else [], generated="", hidl="1", selection=word)
    return to_html(page)


def named(word: str) -> Callable[[Step], example.Metrics]:
    """Metrics by a hostile name and in a hostile unit, beside the one that is promised."""

    def measure(step: Step) -> example.Metrics:
        ranks = list(range(step.placement.ranks))
        samples = [2.0 + rank for rank in ranks]
        rate = {"name": "rate", "value": 2.0, "unit": "GFLOP/s", "samples": samples, "ranks": ranks}
        other = {"name": word, "value": 1.0, "unit": word}
        return [rate, {**other, "samples": [3.0, 4.0], "sizes": [1, 8]}]

    return measure


def test_hostile_words_add_no_element_and_no_attribute(hostile: str) -> None:
    elements = Elements(hostile).found
    assert {tag for tag, _ in elements if tag in {"img", "b-", "iframe", "object"}} == set()
    assert [tag for tag, _ in elements].count("script") == 1
    assert [name for _, attributes in elements for name in attributes if name.startswith("on") or name == "src"] == []


def test_hostile_words_are_all_visible(hostile: str) -> None:
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", hostile) is None
    hostile.encode("utf-8")


def test_half_a_character_is_visible_too(page: Page) -> None:
    assert "a\\ud800b" in to_html(replace(page, selection="a\ud800b"))


def test_hostile_words_run_nothing_in_a_browser(hostile: str, tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(hostile, encoding="utf-8")
    tab.open(file)
    assert tab.complaints() == []
    assert tab.value("document.scripts.length") == 1
    assert tab.value("document.querySelectorAll('svg.chart .pt').length") > 5


def test_no_label_of_a_profile_is_cut_off(page: Page, tab: Tab, tmp_path: Path) -> None:
    losses = tuple(ReportedLoss(cause, 0.05, -0.4, 0.9) for cause in CAUSES.values())
    fall = ReportedWaterfall(4, 1 - 0.05 * len(losses), losses)
    times = tuple(RankTimes(rank, "node1", 0.5, 0.3, 0.2) for rank in (0, 123_456))
    profile = ReportedProfile(
        "phases",
        "site",
        "run",
        "2026-11-30T15:13:34+00:00",
        2,
        0.5,
        0.3,
        "estimated",
        (),
        times,
        (0, 1),
        ((0, 9),) * 2,
        (fall,),
    )
    file = tmp_path / "report.html"
    file.write_text(to_html(replace(page, profiles=(profile,))), encoding="utf-8")
    tab.open(file)
    charts = (f"svg[aria-label^='{label}'] {part}" for label in ("Lost", "Time") for part in ("text", "line"))
    lines = f'[...document.querySelectorAll("{", ".join(charts)}")]'
    width = "e.ownerSVGElement.viewBox.baseVal.width"
    outside = f"{lines}.filter(e => e.getBBox().x < -1 || e.getBBox().x + e.getBBox().width > {width} + 1)"
    assert tab.value("document.querySelectorAll('line.whisker').length") == len(CAUSES)
    assert tab.value(f"{outside}.map(e => e.textContent)") == []
