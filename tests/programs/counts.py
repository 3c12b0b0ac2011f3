"""Count to the last number, one rank, over several jobs: ``counts.py LAST [WAITS_AT,...] [FAILS_AT,...]``.

At the numbers WAITS_AT it waits for a request to stop, and at FAILS_AT it is killed the first time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from hidl_workloads import should_stop

last = int(sys.argv[1])
waits, fails = ([int(word) for word in words.split(",") if word] for words in (*sys.argv[2:], "", "")[:2])
directory = Path(os.environ["HIDL_CHECKPOINT"])
directory.mkdir(exist_ok=True)
file = directory / "count"
count = int(file.read_text()) if file.exists() else 0
print(f"begins at {count}", flush=True)
while count < last:
    count += 1
    beside = file.with_name(".count")
    beside.write_text(str(count))
    beside.replace(file)
    killed = directory / f".killed-{count}"
    if count in fails and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while count in waits and not should_stop():
        time.sleep(0.02)
    if should_stop() and count < last:
        sys.exit(75)
print(f"done at {count}", flush=True)
