"""Train ``gpt`` on data that take half a second per batch to read: WORDS..."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hidl_workloads.gpt import GPT
from hidl_workloads.parameters import Gpt
from hidl_workloads.training import program
from hidl_workloads.training.data import TokenData
from hidl_workloads.training.model import Batch

READ = TokenData.read


def read_slowly(data: TokenData, samples: Sequence[tuple[int, int]]) -> Batch:
    time.sleep(0.5)
    return READ(data, samples)


TokenData.read = read_slowly  # type: ignore[method-assign]
program.main("gpt", Gpt, GPT)
