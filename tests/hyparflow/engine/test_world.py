"""Where a rank stands."""

from __future__ import annotations

import pytest
from hyparflow.engine.world import Seat
from hyparflow.errors import WorldError


def test_ranks_count_through_the_partitions_of_a_replica_first() -> None:
    assert Seat.of(5, 6, partitions=3, replicas=2) == Seat(3, 2, replica=1, partition=2)


def test_owners_of_partitions_are_in_every_replica() -> None:
    assert Seat.of(0, 6, partitions=3, replicas=2).ranks([2, 0]) == [0, 2, 3, 5]


def test_parts_of_images_come_between_replicas_and_partitions() -> None:
    seat = Seat.of(9, 12, partitions=2, replicas=2, spatial=3)
    assert (seat.replica, seat.part, seat.partition) == (1, 1, 1)
    assert seat.ranks([1]) == [1, 3, 5, 7, 9, 11]


def test_a_wrong_number_of_ranks_says_how_many_are_needed() -> None:
    with pytest.raises(WorldError, match="2 partitions x 3 replicas need 6 ranks, and 4 were started"):
        Seat.of(0, 4, partitions=2, replicas=3)
    with pytest.raises(WorldError, match="2 partitions x 3 replicas x 2 parts of the images need 12 ranks"):
        Seat.of(0, 4, partitions=2, replicas=3, spatial=2)
