"""A rank that writes what reached it, its variables and its arguments, into ``$TELLS/<rank>.json``; then it ends as
``$STATUS`` or ``$SIGNAL`` say, where ``$FAILING_RANK`` is its own (default: 1). With ``$WITH_MPI`` it tells its world's
size too.
"""

import json
import os
import signal
import sys
from pathlib import Path

_RANK = ("MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

size = None
if os.environ.get("WITH_MPI"):
    from mpi4py import MPI

    size = MPI.COMM_WORLD.size
rank = next(os.environ[name] for name in _RANK if name in os.environ)
Path(os.environ["TELLS"], f"{rank}.json").write_text(
    json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ), "size": size, "host": os.uname().nodename}),
    encoding="utf-8",
)
if rank == os.environ.get("FAILING_RANK", "1"):
    sys.stderr.write(os.environ.get("SAYS", ""))
    sys.stderr.flush()
    if "SIGNAL" in os.environ:
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        signal.pause()
    sys.exit(int(os.environ.get("STATUS", "0")))
