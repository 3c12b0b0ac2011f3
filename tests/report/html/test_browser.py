"""The page in a real Chromium: it opens, asks for nothing, and serves people with and without eyes, mice and paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.html.browser import Tab

pytestmark = pytest.mark.real

WIDTHS = [320, 360, 768, 1280]


@pytest.fixture(scope="module")
def file(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def test_it_opens_without_errors(tab: Tab, file: Path) -> None:
    tab.open(file)
    assert tab.complaints() == []
    assert tab.value("document.readyState") == "complete"


def test_no_request_leaves_it(tab: Tab, file: Path) -> None:
    tab.open(file)
    assert tab.requests() == []


@pytest.mark.parametrize("asked", ["fetch('https://example.org/')", "import('https://example.org/x.js')"])
def test_its_policy_refuses_a_request_that_somebody_makes_nevertheless(tab: Tab, file: Path, asked: str) -> None:
    tab.open(file)
    assert tab.value(f"{asked}.then(() => 'came through', () => 'refused')") == "refused"
    assert any("Content Security Policy" in complaint for complaint in tab.complaints())


def test_a_page_with_an_error_is_reported(tab: Tab, file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(file.read_text(encoding="utf-8").replace("</body>", "<script>alert(1)</script></body>"))
    tab.open(broken)
    assert tab.complaints() != []


def test_every_chart_is_drawn_within_its_frame(tab: Tab, file: Path) -> None:
    tab.open(file)
    outside = """[...document.querySelectorAll('svg.chart')].flatMap(chart => {
        const frame = chart.getBoundingClientRect();
        return [...chart.querySelectorAll('text, circle, rect, polyline, path')].filter(part => {
            const box = part.getBoundingClientRect();
            return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
                box.bottom > frame.bottom + 1;
        }).map(part => chart.getAttribute('aria-label').slice(0, 40) + ': ' + part.outerHTML.slice(0, 80));
    })"""
    assert tab.value("document.querySelectorAll('svg.chart .pt').length") > 50
    assert tab.value(outside) == []


def test_no_two_labels_of_an_axis_touch(tab: Tab, file: Path) -> None:
    tab.open(file)
    touching = """[...document.querySelectorAll('svg.chart')].flatMap(chart => {
        const labels = [...chart.querySelectorAll('text')].map(l => [l.textContent, l.getBoundingClientRect()]);
        return labels.flatMap(([a, p], i) => labels.slice(i + 1).filter(([b, q]) =>
            p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom
        ).map(([b]) => a + ' | ' + b));
    })"""
    assert tab.value(touching) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_no_width_scrolls_sideways(tab: Tab, file: Path, width: int) -> None:
    tab.open(file, width=width)
    tab.value("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_moves_while_it_loads_or_is_used(tab: Tab, file: Path, width: int) -> None:
    tab.open(file, width=width)
    tab.value("document.querySelector('svg.chart').focus()")
    tab.press("ArrowRight")
    moved = """new Promise(done => { let sum = 0;
        new PerformanceObserver(list => list.getEntries().forEach(entry => { sum += entry.value; }))
            .observe({type: 'layout-shift', buffered: true});
        setTimeout(() => done(sum), 100); })"""
    assert tab.value(moved) == 0


def test_everything_that_can_be_used_is_reached_by_the_tab_key_in_the_order_of_the_page(tab: Tab, file: Path) -> None:
    tab.open(file)
    wanted = tab.value("""[...document.querySelectorAll('a[href], button, input, summary, [tabindex]')]
        .filter(e => e.checkVisibility() && !e.closest('details:not([open]) > :not(summary)')).length""")
    reached = []
    for _ in range(wanted):
        tab.press("Tab")
        reached.append(tab.value("document.activeElement.getBoundingClientRect().top + scrollY"))
    assert tab.value("document.activeElement.tagName") == "SUMMARY", "the last run's details come last"
    assert reached[0] == pytest.approx(
        tab.value("document.querySelector('.skip').getBoundingClientRect().top + scrollY"), abs=50
    )


def test_the_focus_is_to_be_seen(tab: Tab, file: Path) -> None:
    tab.open(file)
    for _ in range(3):
        tab.press("Tab")
    assert tab.value("getComputedStyle(document.activeElement).outlineWidth") == "3px"


def test_arrow_keys_read_out_the_values_of_a_chart(tab: Tab, file: Path) -> None:
    tab.open(file)
    tab.value("document.querySelector('svg.chart').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.value("document.querySelector('.readout').textContent").startswith("2 nodes: ")


def test_the_pointer_does_too(tab: Tab, file: Path) -> None:
    tab.open(file)
    x, y = tab.value("""(() => { const mark = document.querySelector('svg.chart .pt circle');
        mark.scrollIntoView({block: 'center', behavior: 'instant'});
        const box = mark.getBoundingClientRect(); return [box.x + 4, box.y + 4]; })()""")
    tab.move(x, y)
    assert tab.value("document.querySelector('.readout').textContent").startswith("1 node: ")


def test_every_picture_has_a_name_and_a_table_beside_it(tab: Tab, file: Path) -> None:
    tab.open(file)
    nameless = "[...document.querySelectorAll('[role=img]')].filter(e => !e.getAttribute('aria-label')).length"
    lonely = (
        "[...document.querySelectorAll('svg.chart')].filter(e => !e.closest('article').querySelector('table')).length"
    )
    assert tab.value(f"[{nameless}, {lonely}]") == [0, 0]


def test_its_accessible_tree_names_every_control(tab: Tab, file: Path) -> None:
    tab.open(file)
    tab("Accessibility.enable")
    nodes = tab("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "link", "searchbox", "region", "navigation", "image", "table"}
    spoken = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]
    assert [role for role, name in spoken if role in {"button", "link", "searchbox", "image"} and not name] == []
    assert {role for role, _ in spoken} >= roles - {"table"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_either_scheme(tab: Tab, file: Path, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 to 1."""
    tab.emulate(prefers_color_scheme=scheme)
    tab.open(file)
    contrasts = """(() => {
        const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
            .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
            return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
            if (!/^rgba.*, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
        const poor = new Set();
        for (const e of document.querySelectorAll('body *:not(script):not(svg *)')) {
            if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
            const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
            const ratio = (a + 0.05) / (b + 0.05);
            if (ratio < 4.5) poor.add(`${e.className || e.tagName} ${ratio.toFixed(2)}`);
        }
        return [...poor];
    })()"""
    assert tab.value(contrasts) == []


def test_the_button_changes_the_colours_and_the_choice_is_kept(tab: Tab, file: Path) -> None:
    tab.emulate(prefers_color_scheme="light")
    tab.open(file)
    ground = "getComputedStyle(document.body).backgroundColor"
    before = tab.value(ground)
    tab.value("document.getElementById('theme').click(); document.getElementById('theme').click()")
    assert tab.value(ground) != before
    tab.open(file)
    assert tab.value("document.documentElement.dataset.theme") == "dark"
    tab.value("document.getElementById('theme').click()")
    assert tab.value(ground) == before


def test_the_filter_leaves_the_runs_that_hold_all_words(tab: Tab, file: Path) -> None:
    tab.open(file)
    tab.value("""(() => { const f = document.getElementById('filter'); f.value = 'PINGPONG example';
        f.dispatchEvent(new Event('input')); })()""")
    shown = "[...document.querySelectorAll('#table-of-runs tbody tr')].filter(r => !r.hidden)"
    assert set(tab.value(f"{shown}.map(r => r.cells[2].textContent)")) == {"pingpong"}
    assert tab.value("document.getElementById('shown').textContent").startswith("3 of ")


def test_a_column_sorts_the_runs_by_its_values(tab: Tab, file: Path) -> None:
    tab.open(file)
    tab.value("document.querySelectorAll('#table-of-runs thead button')[6].click()")
    seconds = tab.value("[...document.querySelectorAll('#table-of-runs tbody tr')].map(r => +r.cells[6].dataset.sort)")
    assert seconds == sorted(seconds)
    assert len(set(seconds)) > 2
    assert tab.value("document.querySelectorAll('#table-of-runs th')[6].getAttribute('aria-sort')") == "ascending"


def test_a_link_to_a_run_opens_its_provenance(tab: Tab, file: Path) -> None:
    tab.open(file)
    tab.value("document.querySelector('#summary tbody a').click()")
    tab.value("new Promise(done => setTimeout(done, 50))")
    assert (
        tab.value("document.querySelector('details.run[open] summary').textContent")
        .strip()
        .startswith("✗ fail resnet50")
    )


def test_without_a_script_everything_is_there(tab: Tab, file: Path) -> None:
    tab.open(file, scripts=False)
    snapshot = tab("DOMSnapshot.captureSnapshot", computedStyles=["visibility"])
    layout, strings = snapshot["documents"][0]["layout"], snapshot["strings"]
    seen = {
        strings[text].strip()
        for text, styles in zip(layout["text"], layout["styles"], strict=True)
        if text >= 0 and [strings[style] for style in styles] in ([], ["visible"])
    }
    assert {"Scaling", "History", "Message sizes", "Nodes", "resnet50", "0.8", "0.9"} <= seen
    assert "auto" not in seen, "a button that does nothing is not shown"


def test_it_prints_in_black_on_white_without_its_controls(tab: Tab, file: Path) -> None:
    tab.emulate(media="print", prefers_color_scheme="dark")
    tab.open(file)
    assert tab.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert tab.value("document.getElementById('theme').checkVisibility()") is False
    tab.open(file, width=720)  # about A4 without its margins
    assert tab.value("document.documentElement.scrollWidth") <= 720
    tab.emulate(prefers_color_scheme="light")
    pages = tab.pdf().count(b"/Type /Page\n")
    assert 5 < pages < 40
