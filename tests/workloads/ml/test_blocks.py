"""Who has what."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import integers

from hidl_workloads.ml.blocks import aligned_share, grid, owner, panels, share, split

TOTAL, PARTS, BLOCK = integers(0, 10_000), integers(1, 300), integers(1, 2000)


@given(TOTAL, PARTS)
def test_shares_follow_each_other_and_differ_by_one_at_most(total: int, parts: int) -> None:
    shares = [share(total, parts, part) for part in range(parts)]
    assert [item for each in shares for item in each] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(TOTAL, PARTS, BLOCK)
def test_aligned_shares_never_cut_a_block(total: int, parts: int, block: int) -> None:
    shares = [aligned_share(total, block, parts, part) for part in range(parts)]
    assert [item for each in shares for item in each] == list(range(total))
    assert all(each.start % block == 0 for each in shares if each)


@given(TOTAL, PARTS, BLOCK)
def test_blocks_are_the_same_however_many_parts_there_are(total: int, parts: int, block: int) -> None:
    blocks = [each for part in range(parts) for each in split(aligned_share(total, block, parts, part), block)]
    assert blocks == split(range(total), block)


@given(integers(0, 500), integers(0, 500), BLOCK)
def test_rows_are_cut_at_multiples_of_a_block_alone(start: int, length: int, block: int) -> None:
    rows = range(start, start + length)
    cut = split(rows, block)
    assert [item for each in cut for item in each] == list(rows)
    assert len({each.start // block for each in cut}) == len(cut)
    assert all(each.start // block == (each.stop - 1) // block for each in cut)


@given(integers(1, 500), PARTS)
def test_an_owner_has_the_item_in_its_share(total: int, parts: int) -> None:
    assert all(item in share(total, parts, owner(total, parts, item)) for item in range(total))


@given(integers(1, 600), BLOCK, integers(1, 12), integers(1, 12))
def test_each_panel_has_one_owner_in_either_matrix(inner: int, width: int, left: int, right: int) -> None:
    cut = panels(inner, width, (left, right))
    assert [item for each in cut for item in each] == list(range(inner))
    assert all(1 <= len(each) <= width for each in cut)
    assert all(owner(inner, parts, each[0]) == owner(inner, parts, each[-1]) for each in cut for parts in (left, right))


@given(integers(1, 400), integers(1, 5000), integers(1, 5000))
def test_no_other_grid_has_tiles_with_shorter_sides(ranks: int, height: int, width: int) -> None:
    rows, columns = grid(ranks, height, width)
    assert rows * columns == ranks
    others = [(each, ranks // each) for each in range(1, ranks + 1) if ranks % each == 0]
    assert height / rows + width / columns == min(height / a + width / b for a, b in others)
