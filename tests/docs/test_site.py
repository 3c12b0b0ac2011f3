"""The documentation as a reader without a network sees it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.docs.links import Page, is_elsewhere, target
from tests.report.html.browser import browser, program

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in built.rglob("*.html")}


def test_no_page_loads_anything_from_another_host(pages: dict[Path, Page]) -> None:
    elsewhere = [(name.name, each) for name, page in pages.items() for each in page.loads if is_elsewhere(each)]
    assert elsewhere == []


def test_no_style_loads_anything_from_another_host(built: Path) -> None:
    address = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]*")
    assert [(file.name, address.findall(file.read_text())) for file in built.rglob("*.css")] == [
        (file.name, []) for file in built.rglob("*.css")
    ]


def test_what_pages_load_is_there(pages: dict[Path, Page]) -> None:
    missing = [
        (page.file.name, address)
        for page in pages.values()
        if page.file.name != "404.html"  # its addresses begin at a server's root
        for address in page.loads
        if not address.startswith("data:") and not target(page.file, address)[0].is_file()
    ]
    assert missing == []


def test_every_link_and_anchor_within_holds(pages: dict[Path, Page]) -> None:
    broken = [
        (page.file.name, address)
        for page in pages.values()
        if page.file.name != "404.html"
        for address in page.links
        if not is_elsewhere(address) and not _leads_somewhere(pages, *target(page.file, address))
    ]
    assert broken == []


def _leads_somewhere(pages: dict[Path, Page], file: Path, anchor: str) -> bool:
    if file not in pages:
        return file.is_file() and not anchor
    return not anchor or anchor in pages[file].anchors or anchor.startswith("__")


@cache
def _headings(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("reference/commands.html", ["hidl run", "--ranks-per-node", "hidl site check"]),
        ("reference/exit-codes.html", ["INCONCLUSIVE", "130"]),
        ("reference/site-file.html", ["max_wall_by_nodes", "node_types"]),
        ("reference/workload-file.html", ["equal_on_all_ranks"]),
        ("reference/documents.html", ["hidl.run/1", "hidl.query-cache/1"]),
        ("reference/tuning/mvapich2.html", ["MV2_USE_CUDA"]),
        ("reference/sites.html", ["frontera"]),
    ],
)
def test_the_reference_holds_what_the_code_does(built: Path, page: str, words: list[str]) -> None:
    text = _headings(built / page)
    assert [word for word in words if word not in text] == []


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if program() is None:
        pytest.skip("NEEDS A BROWSER: no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_search_works_in_pages_that_are_opened_as_files(built: Path, tab: Any) -> None:
    tab.open(built / "index.html")

    found = tab.value("""new Promise(done => {
        const field = document.querySelector('[data-md-component=search-query]');
        const look = () => {
            const links = [...document.querySelectorAll('.md-search-result__link')].map(link => link.href);
            if (links.length) done(links); else setTimeout(look, 50);
        };
        field.focus();
        field.value = 'MV2_USE_CUDA';
        field.dispatchEvent(new Event('keyup', {bubbles: true}));
        look();
    })""")

    assert any("reference/tuning/mvapich2.html" in address for address in found)
    assert tab.complaints() == []
    assert [address for address in tab.requests() if not address.startswith("file:")] == []
