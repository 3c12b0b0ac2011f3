"""``python -m hidl_workloads.omb BENCHMARK [OPTION...]``, ``... suite --benchmarks=A,B [OPTION...]``, ``... list``."""

from __future__ import annotations

import sys

from hidl_workloads.omb.program import main

sys.exit(main(sys.argv[1:]))
