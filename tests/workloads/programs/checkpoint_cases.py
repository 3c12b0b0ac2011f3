"""Checkpoints on two ranks, written, damaged and read back: ``checkpoint_cases.py RESULTS DIRECTORY``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hidl_workloads.checkpoint import Checkpoints, Snapshot
from hidl_workloads.refusal import Refused

WORLD = MPI.COMM_WORLD
ROOT = Path(sys.argv[2])
SAME = {"program": "toy", "width": 4}
VERSIONS = {"torch": "2.13"}


def opened(name: str, run: str = "first", communicator: MPI.Comm = WORLD, keep: int = 2, **changes: Any) -> Checkpoints:
    os.environ |= {"HIDL_RUN_ID": run, "HIDL_CHECKPOINT_KEEP": str(keep)}
    given = {"identity": SAME, "versions": VERSIONS} | changes
    return Checkpoints(communicator, ROOT / name, **given)


def snapshot(step: int) -> Snapshot:
    shared, own = f"shared {step}".encode() * 100, f"own {step} of rank {WORLD.rank}".encode() * 100
    return Snapshot(lambda file: file.write(shared), lambda file: file.write(own), {"loss": step / 3})  # type: ignore


def saved(name: str, *steps: int, **options: Any) -> Checkpoints:
    checkpoints = opened(name, **options)
    for step in steps:
        assert checkpoints.save(step, snapshot(step))
    return checkpoints


def outcome(act: Callable[[], Any]) -> dict[str, Any]:
    """Return what rank 0 got or why it was refused, and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            result = {"got": act()}
        except Refused as error:
            result = {"refused": str(error)}
    return result | {"said": said.getvalue()}


def found(checkpoints: Checkpoints, limit: int = 100, communicator: MPI.Comm = WORLD) -> Any:
    newest = checkpoints.newest(limit)
    if newest is None:
        return None
    read = (newest.shared.read_bytes()[:10].decode(), newest.own.read_bytes().decode().split("own ")[1])
    return [newest.step, newest.ranks, newest.document, communicator.allgather(read)]


def names(name: str) -> list[str]:
    return sorted(path.name for path in (ROOT / name).iterdir())


def on_first(act: Callable[[], Any]) -> None:
    WORLD.Barrier()
    if WORLD.rank == 0:
        act()
    WORLD.Barrier()


def flip(path: Path, place: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[place] ^= 1
    path.write_bytes(contents)


def damage(kind: str) -> None:
    path = ROOT / f"damaged {kind}" / "step-000000000006"
    manifest, older = path / "manifest.json", path.with_name("step-000000000003")
    {
        "cut": lambda: os.truncate(path / "shared", 50),
        "flipped": lambda: flip(path / "rank-000001", 70),
        "without manifest": manifest.unlink,
        "garbled manifest": lambda: manifest.write_text(manifest.read_text()[:100]),
        "changed document": lambda: manifest.write_text(manifest.read_text().replace('"loss": 2.0', '"loss": 3.0')),
        "without a rank": (path / "rank-000001").unlink,
        "of another step": lambda: manifest.write_bytes((older / manifest.name).read_bytes()),
    }[kind]()


DAMAGES = (
    "cut",
    "flipped",
    "without manifest",
    "garbled manifest",
    "changed document",
    "without a rank",
    "of another step",
)


def all_damages() -> dict[str, Any]:
    results = {}
    for kind in DAMAGES:
        saved(f"damaged {kind}", 3, 6)
        on_first(lambda kind=kind: damage(kind))
        checkpoints = opened(f"damaged {kind}", keep=1)
        results[kind] = outcome(lambda checkpoints=checkpoints: found(checkpoints))
        assert checkpoints.save(4, snapshot(4))
        results[kind]["then"] = outcome(lambda checkpoints=checkpoints: found(checkpoints))
        assert checkpoints.save(6, snapshot(6))
        at_last = outcome(lambda checkpoints=checkpoints: found(checkpoints))
        results[kind]["at last"] = [at_last, names(f"damaged {kind}")]
    return results


def full_disk() -> dict[str, Any]:
    """Rank 1 may write no more than 1000 bytes to a file, of which it needs more."""
    checkpoints = saved("full", 3)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if WORLD.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    result = outcome(lambda: checkpoints.save(6, snapshot(6)))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return result | {"names": names("full"), "newest": found(checkpoints), "again": checkpoints.save(6, snapshot(6))}


def with_other_ranks() -> dict[str, Any]:
    saved("ranks", 3).finish()
    saved("shards", 3).finish()
    results: dict[str, Any] = {}
    if WORLD.rank == 0:
        alone = MPI.COMM_SELF
        results["fewer"] = outcome(lambda: found(opened("ranks", communicator=alone), communicator=alone))
        fixed = "each rank has a shard of the weights"
        results["shards"] = outcome(lambda: found(opened("shards", communicator=alone, fixed_ranks=fixed)))
        assert opened("grown", communicator=alone).save(3, snapshot(3))
    WORLD.Barrier()
    results["more"] = outcome(lambda: found(opened("grown")))
    return results


def owners() -> dict[str, Any]:
    first = saved("owned", 3)
    results = {"second": outcome(lambda: opened("owned", run="second"))}
    next_job = opened("owned")
    results["fenced"] = outcome(lambda: first.save(6, snapshot(6)))
    results["next job"] = outcome(lambda: next_job.save(6, snapshot(6)))
    next_job.finish()
    results["released"] = outcome(lambda: found(opened("owned", run="second")))
    return results


def broken() -> dict[str, Any]:
    """Rank 1 cannot make its snapshot, and the document is no JSON."""

    def write(_: Any) -> None:
        raise KeyError("optimizer")

    checkpoints = saved("broken", 3)
    own = write if WORLD.rank else (lambda _: None)
    results = {"snapshot": outcome(lambda: checkpoints.save(6, Snapshot(lambda _: None, own, {})))}
    no_json = Snapshot(lambda _: None, lambda _: None, {"loss": object()})
    results["document"] = outcome(lambda: checkpoints.save(6, no_json))
    return results | {"newest": found(checkpoints)}


def main() -> None:
    kept = saved("kept", 3, 6, 9)
    for name in ("model", "version"):
        saved(name, 3)
    results = {
        "kept": {"names": names("kept"), "newest": found(kept)},
        "damages": all_damages(),
        "older training": outcome(lambda: found(saved("older", 3, 6), limit=5)),
        "nothing": outcome(lambda: found(opened("nothing"))),
        "owners": owners(),
        "other model": outcome(lambda: found(opened("model", identity=SAME | {"width": 8}))),
        "other version": outcome(lambda: found(opened("version", versions={"torch": "2.14"}))),
        "ranks": with_other_ranks(),
        "full disk": full_disk(),
        "broken": broken(),
    }
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
