"""Training ResNets with hyparflow on two pinned ranks, against one process, Keras' own threads, and Horovod, in turn.

All contenders of a ResNet are started once, compile, and are stopped; then they take turns, one step that is not timed
and some that are, so that a drift of the machine's speed meets all of them. One rank has one core and one thread;
Keras' own training has two threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import stacks
from benchmarks.measure import Outcome

_REPOSITORY = Path(__file__).parent.parent
_DEPTHS = (56, 110)
_ROUNDS = 5
_STEPS = 2
_MICRO_BATCHES = 8
_PARTITIONS = 2


def measure() -> list[Outcome]:
    """Speed for each depth, and memory."""
    return [*(outcome for depth in _DEPTHS for outcome in speed(depth)), memory()]


def speed(depth: int) -> list[Outcome]:
    """One ResNet: every figure is a median of the rounds' ratios."""
    with ExitStack() as stack:
        names = _contenders()
        running = {name: stack.enter_context(_Contender.started(depth, *how)) for name, how in names.items()}
        seconds: dict[str, list[float]] = {name: [] for name in running}
        predicted: list[float] = []
        for _ in range(_ROUNDS):
            predicted.append(running["pipeline"].known["predicted"])
            for name, contender in running.items():
                seconds[name].append(contender.steps(_STEPS)["seconds"])
        planned = running["pipeline"].known["planned"]
    return _judged(f"ResNet-{depth}", seconds, predicted, planned)


def memory(depth: int = 110) -> Outcome:
    """The greater of the ranks' peaks under 1F1B over GPipe's, at 16 micro-batches."""
    peaks = {}
    prefix = stacks.install("hyparflow")
    for schedule in ("gpipe", "1f1b"):
        with _Contender.started(depth, prefix, "hyparflow", 2, _settings(schedule, 16)) as contender:
            peaks[schedule] = max(contender.known["peaks"])
    details = ", ".join(f"{name} {peak / 2**20:.0f} MiB" for name, peak in peaks.items())
    name = f"ResNet-{depth}, 16 micro-batches: peak memory, 1f1b / gpipe"
    return Outcome(name, peaks["1f1b"] / peaks["gpipe"], 0.7, "", details)


def _judged(
    model: str, seconds: Mapping[str, list[float]], predicted: Sequence[float], planned: float
) -> list[Outcome]:
    """``predicted``: of each round's pipeline, from its last step before; ``planned``: before the first step."""

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    told = ", ".join(f"{name} {value:.3f} s" for name, value in medians.items())
    # The shortest time of m micro-batches over p equal stages: (m + p - 1) / (m * p) of one process' time.
    bubble = (_MICRO_BATCHES + _PARTITIONS - 1) / (_MICRO_BATCHES * _PARTITIONS)

    def off(guesses: Sequence[float]) -> float:
        return abs(statistics.median(a / b for a, b in zip(guesses, seconds["pipeline"], strict=True)) - 1)

    refined = f"{statistics.median(predicted):.3f} s"
    outcomes = [
        Outcome(
            f"{model}: pipeline's time / bubble bound", ratio("pipeline", "sequential") / bubble, 1 / 0.93, "", told
        ),
        Outcome(f"{model}: pipeline's time / Keras' with 2 threads", ratio("pipeline", "keras"), 1 / 1.15, ""),
        Outcome(f"{model}: 2 replicas' time / one process'", ratio("replicas", "sequential"), 1 / 1.9, ""),
        Outcome(f"{model}: the plan's time is off by", off([planned] * _ROUNDS), 0.1, "", f"{planned:.3f} s"),
        Outcome(f"{model}: time refined from the last step is off by", off(predicted), 0.1, "", refined),
    ]
    if "horovod" in seconds:
        outcomes.append(Outcome(f"{model}: 2 replicas' time / Horovod's", ratio("replicas", "horovod"), 1, ""))
    else:
        print(f"{model}: no stack horovod is installed: not compared with it", file=sys.stderr)
    return outcomes


def _settings(schedule: str, micro_batches: int) -> dict[str, Any]:
    return {"partitions": _PARTITIONS, "micro_batches": micro_batches, "schedule": schedule}


def _contenders() -> dict[str, tuple[Any, ...]]:
    """Name -> the arguments of ``_Contender.started`` after the depth."""
    prefix = stacks.install("hyparflow")
    found = {
        "sequential": (prefix, "sequential", 1, {}),
        "pipeline": (prefix, "hyparflow", 2, _settings("1f1b", _MICRO_BATCHES)),
        "keras": (prefix, "keras", 1, {}),
        "replicas": (
            prefix,
            "hyparflow",
            2,
            {"partitions": 1, "replicas": 2, "micro_batches": _MICRO_BATCHES // 2, "schedule": "1f1b"},
        ),
    }
    if (other := stacks.installed("horovod")) is not None:
        found["horovod"] = (other, "horovod", 2, {})
    return found


class _Contender:
    """A program of ``benchmarks.pipeline_ranks``, stopped but for its own steps; ``known``: what it said last."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.known: dict[str, Any] = {"processes": []}

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, depth: int, prefix: Path, contender: str, ranks: int, settings: Mapping[str, Any]
    ) -> Iterator[_Contender]:
        """Start it, wait until it is ready, and end it in the end."""
        alone = contender == "keras"
        binding = [] if alone else ["-bind-to", "core"]
        start = [prefix / "bin" / "mpiexec", *binding, "-n", str(ranks), prefix / "bin" / "python", "-m"]
        command = [*map(str, start), "benchmarks.pipeline_ranks", contender, str(depth), json.dumps(dict(settings))]
        threads = "2" if alone else "1"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{_REPOSITORY}:{_REPOSITORY / 'libs' / 'hyparflow'}",
            "OMP_NUM_THREADS": threads,
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": threads,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        contender = cls(process)
        try:
            contender._wait()
            yield contender
        finally:
            contender._signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def steps(self, count: int) -> dict[str, Any]:
        """Run a block of steps; returns seconds of a step, and the ranks' peaks of memory in bytes."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        self._wait()
        return self.known

    def _signal(self, number: int) -> None:
        """To all ranks: the launcher has put each into a session of its own."""
        for process in self.known["processes"]:
            os.kill(process, number)

    def _wait(self) -> None:
        """Until it has answered; then stop it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.known = json.loads(line)
                self._signal(signal.SIGSTOP)
                return
        raise SystemExit(f"{self._process.args} ended with {self._process.wait()}")
