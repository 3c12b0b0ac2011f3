"""A neighbour: takes a core away for some time, and gives it back for some time, at random. ``hog.py CORE SEED``."""

import os
import random
import sys
import time

core, seed = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
source = random.Random(seed)
print("here", flush=True)
while True:
    end = time.perf_counter() + source.uniform(0.2, 1.2)
    while time.perf_counter() < end:
        pass
    time.sleep(source.uniform(0.2, 1.2))
