"""The neighbourhood of -N."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_workloads.omb.neighborhood import neighborhood
from hidl_workloads.omb.options import UsageError

RANKS = 5
EDGES = st.lists(st.tuples(st.integers(0, RANKS - 1), st.integers(0, RANKS - 1)), max_size=20)


@given(edges=EDGES)
def test_each_edge_of_a_graph_joins_a_block_that_is_sent_to_one_that_is_received(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int]]
) -> None:
    file = tmp_path_factory.mktemp("graph") / "edges.csv"
    file.write_text("# from,to\n" + "".join(f"{start}, {end}\n" for start, end in edges), encoding="utf-8")
    near = neighborhood(f"graph:{file}", RANKS)
    joined = [
        (source, near.block_for(source, rank, sources[:block].count(source)))
        for rank, sources in enumerate(near.sources)
        for block, source in enumerate(sources)
    ]
    assert sorted(joined) == [(rank, block) for rank, to in enumerate(near.destinations) for block in range(len(to))]


@pytest.mark.parametrize(
    ("text", "because"),
    [("0,1\n1;2\n", "line 2: '1;2' is not an edge"), ("0,1,2\n", "line 1"), ("0,5\n", "requires more than 5 ranks")],
)
def test_a_faulty_graph_is_refused_with_its_line(tmp_path: Path, text: str, because: str) -> None:
    file = tmp_path / "edges.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=because):
        neighborhood(f"graph:{file}", RANKS)


def test_a_graph_needs_a_file_that_is_there() -> None:
    with pytest.raises(UsageError, match="the graph cannot be read"):
        neighborhood("graph:/there/is/no/such/file", RANKS)
