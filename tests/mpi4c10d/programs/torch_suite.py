"""Run PyTorch's own tests of backends, which its wheel contains, and write the outcome of each as JSON.

The ranks are started by mpiexec. Tests are skipped as for gloo: those for NCCL, for GPUs and for more ranks.
Arguments: the backend, the file for the outcomes, names of tests (default: all). The backend is called mpi4c10d here:
under the name mpi, the tests expect events of torch's profiler.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path

os.environ["BACKEND"] = "gloo"  # decorators compare it while the module is imported
os.environ["PYTORCH_PRINT_REPRO_ON_FAILURE"] = "0"
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]

# These modules read the variables and the stand-in module above while they are imported.
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

#: Timeout of each group.
SECONDS = 60.0
SKIPS = {skip.exit_code for skip in TEST_SKIPS.values()}
backend, file = sys.argv[1:3]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if size > 2:
    os.environ["BACKEND"] = "mpi"  # tests of groups otherwise require eight ranks


class Suite(distributed_test.DistributedTest._DistTestBase, distributed_test.TestDistBackend):  # type: ignore[misc]
    """The tests, each of which runs in this process instead of children."""

    world_size = size


def run(name: str) -> str:
    """Return how the test ended on this rank."""
    known = backend.replace("mpi4c10d", "mpi")  # some tests require a name that they know
    distributed_test.BACKEND = backend if name == "test_get_backend" else known
    case = Suite(name)
    case.rank, case.file_name = rank, ""
    try:
        getattr(case, name)()
    except unittest.SkipTest:
        return "skipped"
    except SystemExit as error:
        return "skipped" if error.code in SKIPS else f"exit {error.code}"
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return "passed"


def main() -> None:
    names = sys.argv[3:] or sorted(name for name in dir(Suite) if name.startswith("test_"))
    store = dist.FileStore(f"{file}.store", size)
    if rank == 0:
        directory = tempfile.mkdtemp()
        for folder in ("test_dir", "init_dir", "barrier"):
            Path(directory, folder).mkdir()
        store.set("directory", directory)
    os.environ["TEMP_DIR"] = store.get("directory").decode()
    outcomes: dict[str, str] = {}
    for number, name in enumerate(names):
        began = time.monotonic()
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(f"group {number}", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=SECONDS),
        )
        if rank == 0:
            distributed_test.Barrier.init()
            store.set(f"barrier {number}", "")
        store.get(f"barrier {number}")
        distributed_test.Barrier.barrier_id = 0
        set_rng_seed()
        store.set(f"{name} {rank}", run(name))
        everybody = [store.get(f"{name} {each}").decode() for each in range(size)]
        if dist.is_initialized():
            dist.destroy_process_group()
        worst = [outcome for outcome in everybody if outcome not in {"passed", "skipped"}]
        outcomes[name] = worst[0] if worst else max(everybody, key="skipped".__eq__)
        if rank == 0:
            print(f"{name}: {outcomes[name]} ({time.monotonic() - began:.1f} s)", flush=True)
            Path(file).write_text(json.dumps(outcomes, indent=1), encoding="utf-8")


main()
