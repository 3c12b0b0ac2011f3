"""Pairs of each round of a round-robin tournament."""

from __future__ import annotations

Pair = tuple[int, int]


def rounds(players: int) -> list[list[Pair]]:
    """Every pair of ``players`` (numbered from 0) once, in rounds in which no player has two partners.

    The circle method: one player stays, the others move on by one place from round to round, and who faces whom is a
    pair. That takes ``players - 1`` rounds, or ``players`` where their number is odd: then each sits out once. In each
    pair the lower number comes first; fewer than two players have no round.
    """
    places = [*range(players), *([None] if players % 2 else [])]
    found = []
    for _ in range(len(places) - 1):
        facing = zip(places[: len(places) // 2], reversed(places[len(places) // 2 :]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return [of_round for of_round in found if of_round]
