"""hidl's own programs on GPUs, each beside the same on processors: what is right, what is refused, how fast."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.launch import Found, Launcher
from hidl_workloads.world import NO_GPU

_TOLERANCE = 1e-9  # of float64: CuPy's libraries sum in another order than NumPy's
_OF_GPUS = ("cupy", "numba")  # NumPy takes their place on processors
_REFUSAL = "MPI library that reads GPU memory"
_SHARED = "NCCL needs a GPU for each rank"
_UNREADABLE = "which this MPI library does not read"


@dataclass(frozen=True)
class Trial:
    """One thing that is tried: its name, what it needs besides PyTorch and mpi4py, and what tries it."""

    name: str
    act: Callable[[Launcher, float], Found]
    needs: tuple[str, ...] = ()

    def run(self, launcher: Launcher, seconds: float) -> Found:
        """Try it within ``seconds``."""
        on_gpu = launcher.device != "cpu"
        needs = [name for name in self.needs if on_gpu or name not in _OF_GPUS]
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        if missing:
            return {"absent": f"no {', '.join(missing)} in this environment"}
        return self.act(launcher, seconds)


def trials() -> Iterator[Trial]:
    """Yield all trials."""
    yield Trial("each rank's GPU", _sanity)
    yield Trial("no GPU is visible", _none_visible)
    for buffer, needs in (("cupy", ("cupy",)), ("numba", ("numba",)), ("torch", ())):
        for benchmark in ("latency", "allreduce"):
            yield Trial(f"omb-{benchmark}, {buffer}", _omb(benchmark, buffer), needs)
    yield Trial("omb-bw, cupy, D H", _omb("bw", "cupy", "D", "H"), ("cupy",))
    yield Trial("omb-put-bw, cupy", _omb("put_bw", "cupy", "-w", "create"), ("cupy",))
    for name, words in _LEARNING.items():
        for buffers in ("staged", "direct"):
            yield Trial(f"{name}, {buffers}", _learning(words, buffers), ("cupy",))
    for name in ("transpose", "svd"):
        yield Trial(f"dask-{name} over mpi://", _dask(name), ("cupy", "mpi4dask"))
    for model, more in (("resnet50", ("--image_size=224",)), ("gpt", ())):
        yield Trial(f"{model}, 2 ranks", _training(model, more, 2, "mpi4py"))
        yield Trial(f"{model}, 1 rank, nccl", _training(model, more, 1, "nccl"))
        for ranks in (1, 2):
            yield Trial(f"{model}, {ranks} rank(s), horovod", _training(model, more, ranks, "horovod"), ("horovod",))


def _sanity(launcher: Launcher, seconds: float) -> Found:
    done = launcher.program(["hidl_workloads.mpi_sanity"], 2, seconds)
    if done.status != 0:
        return done.failure()
    return {"gpus": done.document.get("world", {}).get("gpus")}


def _none_visible(launcher: Launcher, seconds: float) -> Found:
    if launcher.device == "cpu":
        return {"absent": "on GPUs alone"}
    done = launcher.program(["hidl_workloads.mpi_sanity"], 2, seconds, environment={"CUDA_VISIBLE_DEVICES": ""})
    if "no GPU for rank 0" not in done.output or done.status != NO_GPU:
        return done.failure()
    return {"said": next(line for line in done.output.splitlines() if "no GPU for rank 0" in line)}


def _omb(benchmark: str, buffer: str, *more: str) -> Callable[[Launcher, float], Found]:
    words = ["hidl_workloads.omb", benchmark, "-c", "-i", "20", "-x", "2", "-u", "0", "-m", ":4194304"]

    def act(launcher: Launcher, seconds: float) -> Found:
        on_gpu = launcher.device != "cpu"
        there = ["--buffer", buffer, *(["-d", "cuda"] if buffer == "torch" else []), *more] if on_gpu else []
        done = launcher.program([*words, *there], 2, seconds)
        if _UNREADABLE in done.output:
            return {"refused": _reason(done.output, _UNREADABLE)}
        if done.status != 0:
            return done.failure()
        figures = next(each for each in done.document["metrics"] if each.get("sizes"))
        by_size = dict(zip(figures["sizes"], figures["samples"], strict=True))
        return {
            figures["name"]: {f"{size} B": by_size[size] for size in sorted(by_size)[:: len(by_size) - 1]},
            "unit": figures["unit"],
        }

    return act


_LEARNING = {
    "kmeans": ["kmeans", "--points=200000", "--block=65536", "--steps=2"],
    "knn": ["knn", "--queries=2048", "--steps=2"],
    "matmul": ["matmul", "--rows=4096", "--inner=4096", "--columns=4096", "--panel=1024", "--steps=2"],
    "linear-regression": ["linear_regression", "--steps=2"],
    "tsvd": ["tsvd", "--steps=2"],
}


def _learning(words: list[str], buffers: str) -> Callable[[Launcher, float], Found]:
    def act(launcher: Launcher, seconds: float) -> Found:
        with tempfile.TemporaryDirectory() as directory:
            results = Path(directory) / "gpu.npz", Path(directory) / "cpu.npz"
            program = [f"hidl_workloads.ml.{words[0]}", *words[1:]]
            there = launcher.program([*program, f"--gpu_buffers={buffers}", f"--result={results[0]}"], 2, seconds / 2)
            if _REFUSAL in there.output:
                return {"refused": _reason(there.output, _REFUSAL)}
            if there.status != 0:
                return there.failure()
            here = launcher.program([*program, f"--result={results[1]}"], 2, seconds / 2, on_gpu=False)
            if here.status != 0:
                return here.failure()
            difference = _difference(*results)
        timed = next(each for each in there.document["metrics"] if each["unit"] == "s")
        found = {
            "difference": difference,
            f"{timed['name']}_seconds": timed["value"],
            "on_processors": here.metric(timed["name"]),
        }
        return found if difference <= _TOLERANCE else {"failed": "other results than on processors", **found}

    return act


def _difference(one: Path, other: Path) -> float:
    """Return the largest difference of two results, in parts of the largest number of its array."""
    with np.load(one) as first, np.load(other) as second:
        if first.files != second.files:
            return float("inf")
        return max((_relative(first[name], second[name]) for name in first.files), default=0.0)


def _relative(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return float("inf")
    if not one.size or one.dtype.kind not in "fiu":
        return 0.0 if np.array_equal(one, other) else float("inf")
    return float(abs(one.astype(float) - other).max() / max(abs(other).max(), np.finfo(float).tiny))


def _dask(name: str) -> Callable[[Launcher, float], Found]:
    def act(launcher: Launcher, seconds: float) -> Found:
        words = [f"hidl_workloads.dask_apps.{name}", "--protocol=mpi", "--runs=2", "--warmup=1"]
        done = launcher.program(words, 4, seconds)
        return {"seconds": done.metric("time")} if done.status == 0 else done.failure()

    return act


def _training(model: str, more: tuple[str, ...], ranks: int, backend: str) -> Callable[[Launcher, float], Found]:
    def act(launcher: Launcher, seconds: float) -> Found:
        small = launcher.device == "cpu"
        if small and backend == "nccl":
            return {"absent": "on GPUs alone"}
        batch = ["--batch=2", "--steps=2", "--warmup=1"] if small else ["--batch=32", "--steps=20", "--warmup=5"]
        precision = [] if small else ["--precision=bfloat16"]
        options = [f"--backend={backend}", *batch, *precision, *(() if small and model == "resnet50" else more)]
        done = launcher.program([f"hidl_workloads.{model}", "--framework=torch", *options], ranks, seconds)
        if _SHARED in done.output:
            return {"refused": _reason(done.output, _SHARED)}
        if done.status != 0:
            return done.failure()
        rate = next(each for each in done.document["metrics"] if each["name"].endswith("_per_second"))
        path = next((each["value"] for each in done.document["metrics"] if each["name"] == "path"), None)
        return {rate["name"]: rate["value"], "path": path}

    return act


def _reason(output: str, wanted: str) -> str:
    return next(line.strip() for line in output.splitlines() if wanted in line)
