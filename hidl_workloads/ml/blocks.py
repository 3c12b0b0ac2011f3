"""Distribution of rows over ranks, and of ranks over a two-dimensional grid."""

from __future__ import annotations

from itertools import pairwise


def share(total: int, parts: int, part: int) -> range:
    """The ``part``-th of ``parts`` consecutive shares of ``total`` items; their sizes differ by one at most."""
    return range(total * part // parts, total * (part + 1) // parts)


def owner(total: int, parts: int, item: int) -> int:
    """Return the number of the part, of ``parts``, whose share contains ``item``."""
    return ((item + 1) * parts - 1) // total


def aligned_share(total: int, block: int, parts: int, part: int) -> range:
    """Return a share in whole blocks of ``block`` items, so that no block depends on ``parts``; see ``share``.

    Only the last block of all may be smaller. Where there are fewer blocks than parts, some shares are empty.
    """
    blocks = share(-(-total // block), parts, part)
    return range(min(blocks.start * block, total), min(blocks.stop * block, total))


def split(rows: range, block: int) -> list[range]:
    """Cut ``rows`` at the multiples of ``block``."""
    if not rows:
        return []
    cuts = [rows.start, *range((rows.start // block + 1) * block, rows.stop, block), rows.stop]
    return [range(start, stop) for start, stop in pairwise(cuts)]


def panels(inner: int, width: int, parts: tuple[int, int]) -> list[range]:
    """Cut the inner dimension so that each panel is ``width`` wide at most and has one owner in either matrix.

    ``parts``: in how many shares the left and the right matrix have it.
    """
    ends = {share(inner, each, part).stop for each in parts for part in range(each)}
    cuts = sorted(ends | {0, *range(width, inner, width)})
    return [range(start, stop) for start, stop in pairwise(cuts)]


def grid(ranks: int, height: float = 1, width: float = 1) -> tuple[int, int]:
    """Rows x columns of a grid of all ``ranks`` for a matrix of ``height`` x ``width``.

    It is the one whose tiles have the shortest sides, ``height/rows + width/columns``, which is what a rank sends and
    receives per unit of the inner dimension in SUMMA; of two that are equal, the one with fewer rows.
    """
    shapes = [(rows, ranks // rows) for rows in range(1, ranks + 1) if ranks % rows == 0]
    return min(shapes, key=lambda shape: height / shape[0] + width / shape[1])
