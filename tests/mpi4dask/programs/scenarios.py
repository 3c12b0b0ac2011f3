"""Scenarios of two ranks, each run by both; rank 0 writes {scenario: [outcome of rank 0, of rank 1]} as JSON.

    mpiexec -n 2 python scenarios.py RESULTS DIRECTORY [SCENARIO...]

An outcome is "ok" or the traceback. DIRECTORY holds the certificate and key of the TLS scenarios.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import scenarios_both_ends
import scenarios_comm
import scenarios_crowd
import scenarios_faults
import scenarios_messages
import scenarios_trust
from mpi4dask import transport
from mpi4py import MPI
from pair import Pair

SCENARIOS = {
    name: value
    for module in (
        scenarios_both_ends,
        scenarios_comm,
        scenarios_crowd,
        scenarios_faults,
        scenarios_messages,
        scenarios_trust,
    )
    for name, value in vars(module).items()
    if asyncio.iscoroutinefunction(value) and [*inspect.signature(value).parameters] == ["pair"]
}
LIMIT = float(os.environ.get("MPI4DASK_LIMIT", "60"))  # seconds; what takes longer hangs


async def outcome(name: str, scenario: Any, directory: Path) -> str:
    """Run one scenario in step with the other rank."""
    pair = Pair(directory)
    print(name, file=sys.stderr, flush=True)
    try:
        await asyncio.wait_for(scenario(pair), LIMIT)
        result = "ok"
    except BaseException:
        result = f"{name}: {traceback.format_exc()}"
        print(result, file=sys.stderr, flush=True)  # seen even where the other rank waits for ever
    await pair.part()
    return result


async def main(results: Path, directory: Path, names: list[str]) -> None:
    """Run all scenarios, or those named, in the same order on both ranks."""
    outcomes = {}
    for name, scenario in SCENARIOS.items():
        if not names or name in names:
            mine = await outcome(name, scenario, directory)
            outcomes[name] = await asyncio.to_thread(MPI.COMM_WORLD.gather, mine, 0)
    if MPI.COMM_WORLD.rank == 0:
        results.write_text(json.dumps(outcomes))


transport.start(MPI.COMM_WORLD)
asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
