"""Who writes what: everything once, and each about as much as the others."""

from __future__ import annotations

from collections import Counter

from hyparflow.checkpoints.saver import shares
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[list[dict[str, tuple[int, bool]]], int]:
    """What each rank owns, where the replicas own alike."""
    partitions, replicas = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    names = st.sampled_from("abcdefgh")
    sizes = {name: (draw(st.integers(1, 100)), draw(st.booleans())) for name in "abcdefgh"}
    owned = [{name: sizes[name] for name in draw(st.sets(names))} for _ in range(partitions)]
    return owned * replicas, partitions


@given(_worlds())
def test_what_is_equal_on_all_replicas_is_written_once_and_what_is_not_once_per_replica(
    world: tuple[list[dict[str, tuple[int, bool]]], int],
) -> None:
    owned, partitions = world

    written = Counter(key for keys in shares(owned, partitions) for key in keys)

    wanted = {
        (name, rank // partitions if private else None)
        for rank, paths in enumerate(owned)
        for name, (_, private) in paths.items()
    }
    assert written == dict.fromkeys(wanted, 1)


@given(_worlds())
def test_a_rank_writes_what_it_owns(world: tuple[list[dict[str, tuple[int, bool]]], int]) -> None:
    owned, partitions = world

    assert all(name in paths for paths, keys in zip(owned, shares(owned, partitions), strict=True) for name, _ in keys)


def test_replicas_share_the_writing() -> None:
    owned = [{f"v{number}": (10, False) for number in range(8)}] * 4

    assert [len(keys) for keys in shares(owned, 1)] == [2, 2, 2, 2]
