"""Draw docs/images/floors.svg: the packages of ``hidl_cli`` on their floors, and the imports between them.

``python -m tools.draw_floors`` writes it. An arrow is left out where a path of other arrows says the same (the
transitive reduction).
"""

from __future__ import annotations

from tools.imports import REPOSITORY, floors, imports, package

PICTURE = REPOSITORY / "docs" / "images" / "floors.svg"
LEFT_OUT = {"__main__", "__init__"}
WIDTH, ROW, BOX, GAP, MARGIN = 860, 66, 26, 34, 24
CHARACTER = 8.2  # pixels, of a monospaced font of 13.5 px


def draw() -> str:
    """The picture as SVG."""
    rows = [(floor, kept) for floor, names in floors() if (kept := [name for name in names if name not in LEFT_OUT])]
    boxes = {
        name: box
        for index, (_, names) in enumerate(rows)
        for name, box in zip(names, _row(names, MARGIN + index * ROW), strict=True)
    }
    arrows = sorted((a, b) for a, below in reduced(edges(set(boxes))).items() for b in below)
    lines = [_arrow(boxes[upper], boxes[lower]) for upper, lower in arrows]
    numbers = [
        f'<text class="floor" x="{MARGIN}" y="{MARGIN + i * ROW + 18}">{floor}</text>'
        for i, (floor, _) in enumerate(rows)
    ]
    return "\n".join(
        [_head(MARGIN * 2 + (len(rows) - 1) * ROW + BOX), *lines, *numbers, *map(_box, boxes.items()), "</svg>\n"]
    )


def edges(packages: set[str]) -> dict[str, set[str]]:
    """Which package imports which, for more than its types."""
    found: dict[str, set[str]] = {name: set() for name in packages}
    for each in imports():
        importer, imported = package(each.importer), package(each.imported)
        if each.kind != "type checking" and importer != imported and {importer, imported} <= packages:
            found[importer].add(imported)
    return found


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The fewest edges with the same paths; ``graph`` has no circles."""

    def below(node: str) -> set[str]:
        return graph[node].union(*(below(child) for child in graph[node]))

    return {node: children - set().union(*(below(child) for child in children)) for node, children in graph.items()}


Box = tuple[float, float, float]  # left, top, width


def _row(names: list[str], top: float) -> list[Box]:
    widths = [len(name) * CHARACTER + 20 for name in names]
    left = (WIDTH - sum(widths) - GAP * (len(names) - 1)) / 2
    return [(left + sum(widths[:i]) + GAP * i, top, width) for i, width in enumerate(widths)]


def _box(named: tuple[str, Box]) -> str:
    name, (left, top, width) = named
    return (
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{BOX}" rx="5"/>'
        f'<text x="{left + width / 2:.0f}" y="{top + 18:.0f}" text-anchor="middle">{name}</text>'
    )


def _arrow(upper: Box, lower: Box) -> str:
    x1, y1 = upper[0] + upper[2] / 2, upper[1] + BOX
    x2, y2 = lower[0] + lower[2] / 2, lower[1] - 2
    # An arrow that passes floors swings out to the side, so that it does not cross the boxes between.
    passed = (y2 - y1) / ROW - 0.5
    out = 0.0 if passed < 1 else (1 if x1 + x2 >= WIDTH else -1) * min(60 + 34 * passed, 330)
    return (
        f'<path d="M{x1:.0f},{y1:.0f} C{x1 + out:.0f},{y1 + 34:.0f} {x2 + out:.0f},{y2 - 34:.0f} {x2:.0f},{y2:.0f}"/>'
    )


def _head(height: float) -> str:
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">
<title>The packages of hidl_cli on their floors, and which imports which</title>
<!-- drawn by tools/draw_floors.py from the imports -->
<style>
text {{ font: 13.5px ui-monospace, monospace; fill: #1f2937 }} .floor {{ fill: #6b7280 }}
rect {{ fill: #eef2ff; stroke: #4f46e5 }} path {{ fill: none; stroke: #9ca3af; marker-end: url(#end) }}
</style>
<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<polygon points="0,0 8,4 0,8" fill="#9ca3af"/></marker></defs>
<rect width="100%" height="100%" style="fill: #fff; stroke: none"/>"""


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE)
