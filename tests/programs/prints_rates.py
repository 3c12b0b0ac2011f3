"""Prints rates as a training does: lines on stdout, a progress bar with colours on stderr. Each rank prints."""

import os
import random
import sys

size = int(os.environ.get("WORLD_SIZE") or os.environ["HIDL_WORLD_SIZE"])
noise = random.random() if "--noisy" in sys.argv else 0
for iteration in range(3):
    print(f"Iter #{iteration}: Img/sec: {100 * size + iteration + noise:g}", flush=True)
    print(f"\r\x1b[32m{iteration}/3 loss {0.5 ** (iteration + 1)}\x1b[0m", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
