"""What each rank of a trial does that is not a program of hidl's: one part; rank 0 writes what it found to FILE.

::

    mpiexec -n 2 python -m benchmarks.gpu.ranks correctness staged cuda FILE

Ranks may share a GPU. Each part is a function that returns what JSON can hold; ``device`` is ``cuda``, or ``cpu``,
where it tests this program itself.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch import nn

from hidl_workloads import gpu_aware, mpi_library
from hidl_workloads.image_networks import resnet50
from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.training.data_parallel.torch_state import named_weights
from hidl_workloads.training.data_parallel.weights import checksum
from hidl_workloads.world import failure_ends_all_ranks

WORLD = MPI.COMM_WORLD
_FEATURES = 64
_PER_RANK = 8
_STEPS = 4
_ROUNDS = 3
_SIZES = (2**20, 4 * 2**20, 25 * 2**20, 100 * 2**20)

Case = dict[str, Any]
CASES: dict[str, Case] = {
    "sgd": {},
    "adam": {"optimizer": "adam"},
    "sgd, small buckets": {"bucket_bytes": 10_000},
    "sgd, one large bucket": {"bucket_bytes": 2**30},
    "sgd, through MPI": {"share_memory": False},
    "sgd, accumulated": {"accumulate": 2},
    "adam, bfloat16 autocast": {"optimizer": "adam", "autocast": True},
    "sgd, GradScaler": {"scaler": True},
    "sgd, channels_last": {"network": "convolutions"},
    "sgd, float16 compression": {"compression": "float16"},
    "sgd, bfloat16 compression": {"compression": "bfloat16"},
}
#: Largest difference of a weight that is accepted, between ranks together and one process on the joint batch.
_TOLERANCES = {"autocast": 0.02, "compression": 0.02, "": 1e-4}


def correctness(device: str, buffers: str = "auto") -> dict[str, Any]:
    """Train each case on all ranks, and on the joint batch in each rank by itself; compare the weights."""
    if buffers == "direct" and (answer := gpu_aware.ask()).aware is not True:
        return {"absent": answer.source}
    cases = {
        name: case
        for name, case in CASES.items()
        if buffers != "direct" or not {"compression", "share_memory"} & {*case}
    }
    return {name: _attempt(lambda case=case: _compare(device, case, buffers)) for name, case in cases.items()}


def _compare(device: str, case: Case, buffers: str) -> dict[str, Any]:
    optimizer, together, path = _train(device, case, buffers, joint=False)
    _, alone, _ = _train(device, case, buffers, joint=True)
    found, expected = dict(named_weights(together)), dict(named_weights(alone))
    difference = max(float(abs(found[name] - expected[name]).max()) for name in found)
    checksums = WORLD.allgather(checksum(found.items()))
    kind = next((each for each in ("autocast", "compression") if each in case), "")
    optimizer.close()
    equal = len(set(checksums)) == 1
    return {
        "difference": difference,
        "equal": equal,
        "path": path,
        "passed": equal and difference < _TOLERANCES[kind],
    }


def _train(device: str, case: Case, buffers: str, *, joint: bool) -> tuple[Any, nn.Module, str]:
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(1)
    convolutional = case.get("network") == "convolutions"
    model = (_convolutions() if convolutional else _perceptron()).to(device)
    if convolutional:
        model = model.to(memory_format=torch.channels_last)
    plain: Any
    if case.get("optimizer") == "adam":
        plain = torch.optim.Adam(model.parameters(), lr=0.001, eps=1e-3)
    else:
        plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    passes = case.get("accumulate", 1)
    optimizer = plain
    if not joint:
        options = {
            key: case[key] for key in ("bucket_bytes", "share_memory", "accumulate", "compression") if key in case
        }
        optimizer = DistributedOptimizer(plain, model, WORLD, gpu_buffers=buffers, **options)
    scaler = torch.amp.GradScaler(device, enabled="scaler" in case)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            shape = (3, 16, 16) if convolutional else (_FEATURES,)
            samples = torch.randn(_PER_RANK * WORLD.size, *shape, generator=random)
            x = (samples if joint else samples.chunk(WORLD.size)[WORLD.rank]).to(device)
            if convolutional:
                x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device, dtype=torch.bfloat16, enabled="autocast" in case):
                y = model(x)
            loss = (y.float() - x.float().flatten(1).mean(1, keepdim=True)).square().mean() / passes
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    path = getattr(optimizer, "path", None)
    return optimizer, model, path.name if path else ""


def _perceptron() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(_FEATURES, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 128), nn.Tanh(),
        nn.Linear(128, 1),
    )  # fmt: skip


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1),
    )  # fmt: skip


def detection(device: str) -> dict[str, Any]:
    """Tell what MPI says of GPU memory, and which way the averager takes by itself."""
    answer = gpu_aware.ask()
    model = nn.Linear(_FEATURES, 1).to(device)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, WORLD)
    path = optimizer.path
    optimizer.close()
    return {
        "mpi": mpi_library.version(),
        "says": answer.aware,
        "source": answer.source,
        "path": path.name if path else None,
        "reason": path.reason if path else None,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "torch": torch.__version__,
    }


def failures(device: str) -> dict[str, Any]:
    """Have a hook of rank 1 raise, and go on; the process must live, and all ranks must be told."""
    model = _perceptron().to(device)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, WORLD)
    x = torch.randn(_PER_RANK, _FEATURES, device=device)
    raises = [WORLD.rank == WORLD.size - 1]

    def fail(_: torch.Tensor) -> None:
        if raises[0]:
            raise ArithmeticError("a hook of the user's raises")

    handle = model[2].weight.register_hook(fail)
    told = "nothing"
    try:
        model(x).square().mean().backward()
        optimizer.step()
    except (ArithmeticError, RuntimeError) as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
    if raises[0]:  # the others wait for it in their pass, until it comes to the next operation
        raises[0] = False
    optimizer.zero_grad()
    handle.remove()
    model(x).square().mean().backward()
    optimizer.step()
    checksums = WORLD.allgather(checksum(named_weights(model)))
    optimizer.close()
    everywhere = WORLD.allgather(told)
    equal = len(set(checksums)) == 1
    passed = equal and everywhere[-1].startswith("ArithmeticError") and "nothing" not in everywhere
    return {"outcome": {"told": everywhere, "equal": equal, "passed": passed}}


def bandwidth(device: str) -> dict[str, Any]:
    """Bytes per second of copies between pinned or pageable memory and the device, by size; this rank alone."""
    found = {}
    for size in _SIZES:
        on_device = torch.zeros(size // 4, device=device)
        for pinned in (True, False):
            if pinned and device == "cpu":
                continue
            host = torch.zeros(size // 4, pin_memory=pinned)
            down = _timed(device, lambda host=host, there=on_device: host.copy_(there, non_blocking=True), 10)
            up = _timed(device, lambda host=host, there=on_device: there.copy_(host, non_blocking=True), 10)
            kind = "pinned" if pinned else "pageable"
            found[f"{size / 2**20:g} MiB {kind}"] = {"down_GBps": size / down / 1e9, "up_GBps": size / up / 1e9}
    return found


def registered(device: str) -> dict[str, Any]:
    """Whether memory that ranks share, and memory of one's own, can be pinned where it is."""
    if device == "cpu":
        return {"absent": "on GPUs alone"}
    from hidl_workloads.training.data_parallel.choice import choose
    from hidl_workloads.training.data_parallel.torch_devices import accelerator_of

    accelerator = accelerator_of(torch.device(device, 0))
    found = {}
    for name, share in (("shared memory", True), ("own memory", False)):
        allreduce = choose(WORLD, (), share_memory=share)
        buffer = allreduce.buffer(2**22, "float32")
        pinned = accelerator.pin(buffer)
        host = torch.from_numpy(buffer)
        there = torch.zeros(2**22, device=device)
        down = _timed(device, lambda host=host, there=there: host.copy_(there, non_blocking=True), 10)
        if pinned:
            accelerator.unpin(buffer)
        del host
        found[name] = {"kind": type(allreduce).__name__, "pinned": pinned, "down_GBps": buffer.nbytes / down / 1e9}
        allreduce.close()
    return found


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _timed(device: str, act: Callable[[], object], times: int) -> float:
    """Median seconds of a call on the slowest rank, the device's work included, after two calls."""
    for _ in range(2):
        act()
    seconds = []
    for _ in range(times):
        _synchronize(device)
        begin = time.perf_counter()
        act()
        _synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return float(WORLD.allreduce(statistics.median(seconds), MPI.MAX))


def steps(device: str, side: int = 224, batch: int = 64) -> dict[str, Any]:
    """Seconds of a step of ResNet-50, bfloat16: each way in turn, three times; and images per second of all ranks."""
    if device == "cpu":
        side, batch = 32, 2
    x = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device=device)
    found: dict[str, list[float]] = {}
    aware = device == "cuda" and bool(gpu_aware.ask().aware)
    direct = ["direct", "direct, no overlap"] if aware else []
    names = ["plain", "staged", "staged, no overlap", *direct, "staged, through MPI", "gloo"]
    if WORLD.size == 1:
        names = ["plain", "staged", *direct[:1], "nccl" if device == "cuda" else "gloo"]
    for _ in range(_ROUNDS if device == "cuda" else 1):
        for name in names:
            _tell(name)
            with _way(name, device) as (model, optimizer, scheduled):

                def step(model: Any = model, optimizer: Any = optimizer, scheduled: Any = scheduled) -> None:
                    optimizer.zero_grad()
                    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                        logits = model(x)
                    nn.functional.cross_entropy(logits.float(), y).backward()
                    scheduled()
                    optimizer.step()

                found.setdefault(name, []).append(_timed(device, step, 10 if device == "cuda" else 1))
    seconds = {name: statistics.median(each) for name, each in found.items()}
    rates = {name: WORLD.size * batch / each for name, each in seconds.items()}
    return {"batch": batch, "side": side, "seconds": seconds, "images_per_second": rates, "samples": found}


def _tell(name: str) -> None:
    """Say on rank 0 what is measured now: the last line of a part that comes to no end."""
    if WORLD.rank == 0:
        print(f"{name} ...", file=sys.stderr, flush=True)


class _way:
    """A model and an optimizer of one way to average, and what stands between the pass and the update."""

    def __init__(self, name: str, device: str) -> None:
        self._name, self._device = name, device

    def __enter__(self) -> tuple[Any, Any, Callable[[], object]]:
        torch.manual_seed(0)
        model = resnet50().to(self._device, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self._optimizer: Any = None
        self._distributed: Any = None
        between: Callable[[], object] = lambda: None  # noqa: E731
        if self._name.startswith(("staged", "direct")):
            # Of two passes only the second averages: without it, gradients are averaged when all are there.
            late = self._name.endswith("no overlap")
            self._optimizer = DistributedOptimizer(
                optimizer,
                model,
                WORLD,
                statistics="local",
                share_memory=self._name != "staged, through MPI",
                gpu_buffers="direct" if self._name.startswith("direct") else "staged",
                accumulate=2 if late else 1,
            )
            if late:
                between = self._optimizer.synchronize
            return model, self._optimizer, between
        if self._name in ("gloo", "nccl"):
            from torch import distributed

            port = WORLD.bcast(_free_port() if WORLD.rank == 0 else None)
            address = f"tcp://127.0.0.1:{port}"
            distributed.init_process_group(self._name, init_method=address, rank=WORLD.rank, world_size=WORLD.size)
            self._distributed = distributed
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                return nn.parallel.DistributedDataParallel(model, broadcast_buffers=False), optimizer, between
        return model, optimizer, between

    def __exit__(self, *_: object) -> None:
        if self._optimizer is not None:
            self._optimizer.close()
        if self._distributed is not None:
            self._distributed.destroy_process_group()


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _attempt(act: Callable[[], Any]) -> Any:
    """Return what ``act`` returns, or what went wrong on this rank."""
    try:
        return act()
    except Exception as error:  # the other cases are told all the same
        return {"failed": f"{type(error).__name__}: {error}", "passed": False}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "detection": detection,
    "correctness": correctness,
    "failures": failures,
    "bandwidth": bandwidth,
    "registered": registered,
    "steps": steps,
}


def main(part: str, *words: str) -> None:
    """Run one part; ``words``: what it is told, the device, the file."""
    *told, device, file = words
    torch.set_num_threads(1)
    found = PARTS[part](device, *told)
    if WORLD.rank == 0:
        Path(file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    with failure_ends_all_ranks():
        main(*sys.argv[1:])
