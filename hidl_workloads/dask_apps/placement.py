"""Placement of an application's data: the same share on each worker, in every run."""

from __future__ import annotations

from typing import Any


def persist(client: Any, *collections: Any) -> tuple[Any, ...]:
    """Compute arrays or data frames and leave them on the workers, which take their rows of blocks in turn.

    Left to itself the scheduler may give everything to one worker, for instance while another starts up: nothing
    would have to travel then. Returns the collections when all is there.
    """
    import dask
    from distributed import wait

    workers = sorted(client.scheduler_info()["workers"])

    def owner(key: Any) -> list[str]:
        return [workers[key[1] % len(workers)]]  # (name, row of blocks, ...)

    with dask.annotate(workers=owner):
        made = dask.persist(*collections)
    wait(made)
    return tuple(made)
