"""Trains small models on the host, and on a simulated GPU by the ways of its gradients; writes the checksums as JSON.

::

    python -m hidl_workloads.world torch_on_gpu FILE [BUG PATH]
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import simulated_gpu
import torch
from mpi4py import MPI
from torch import nn
from torch.utils._pytree import tree_map_only
from torch_runs import WORLD, loss_of, momentum, perceptron

from hidl_workloads import mpi_library
from hidl_workloads.gpu_aware import Answer
from hidl_workloads.refusal import Refused
from hidl_workloads.training import horovod_gpu
from hidl_workloads.training.data_parallel import torch_devices
from hidl_workloads.training.data_parallel.torch_optimizer import DistributedOptimizer
from hidl_workloads.training.data_parallel.torch_state import named_state
from hidl_workloads.training.data_parallel.weights import checksum

WIDTH = 200
CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"make": torch.optim.Adam},
    "one bucket": {"bucket_bytes": 2**30},
    "small buckets": {"bucket_bytes": 100},
    "through MPI": {"share_memory": False},
    "accumulated": {"accumulate": 2},
    "float16": {"compression": "float16"},
    "bfloat16": {"compression": "bfloat16"},
    "sums": {"average": False},
    "resumed": {"make": torch.optim.Adam, "resumes": True},
    "contiguous": {"layout": torch.contiguous_format},
    "channels_last": {"layout": torch.channels_last},
}
HOST = torch.device("cpu")
POINTER = """
import ctypes, opaque_device, torch
ctypes.c_int.from_address(torch.ones(4, device=opaque_device.register()).data_ptr()).value
"""


def train(case: dict[str, Any], buffers: str, device: torch.device, communicator: MPI.Intracomm = WORLD) -> str:
    """Train four steps; return the checksum of parameters and running statistics."""
    torch.manual_seed(WORLD.rank)
    options = {"bucket_bytes": 100_000, "gpu_buffers": buffers} | case
    make: Callable[..., Any] = options.pop("make", momentum)
    layout: torch.memory_format | None = options.pop("layout", None)
    resumes = options.pop("resumes", False)

    def begin(saved: bytes | None = None) -> tuple[nn.Module, Any]:
        model = (convolutions(layout) if layout else perceptron(WIDTH)).to(device)
        plain = make(model.parameters(), lr=0.01)
        if saved is not None and WORLD.rank == 0:
            state = torch.load(io.BytesIO(saved))
            model.load_state_dict(state["model"])
            plain.load_state_dict(state["optimizer"])
        return model, DistributedOptimizer(plain, model, communicator, **options)

    model, optimizer = begin()
    for step in range(4):
        if resumes and step == 2:
            saved = save(model, optimizer)
            optimizer.close()
            model, optimizer = begin(saved)
        optimizer.zero_grad()
        for _ in range(case.get("accumulate", 1)):
            loss = of_images(model, device) if layout else loss_of(model, torch.randn(4, 5).to(device))
            loss.backward()
        optimizer.step()
    found: str = checksum(named_state(model))
    optimizer.close()
    return found


def save(model: nn.Module, optimizer: Any) -> bytes:
    """Return a checkpoint, of the host's tensors."""
    file = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(tree_map_only(torch.Tensor, torch.Tensor.cpu, state), file)
    return file.getvalue()


def convolutions(layout: torch.memory_format) -> nn.Sequential:
    """A network for images of 3 x 6 x 6, with a layer that normalizes."""
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.Conv2d(8, 1, 4)
    return nn.Sequential(*layers).to(memory_format=layout)


def of_images(model: nn.Module, device: torch.device) -> torch.Tensor:
    images = torch.randn(4, 3, 6, 6).to(device)
    loss: torch.Tensor = model(images).square().mean()
    return loss


def raising(buffers: str, device: torch.device) -> list[str]:
    """Let the averager's hook raise on the last rank; return what each rank is told."""
    model = perceptron().to(device)
    optimizer = DistributedOptimizer(momentum(model.parameters()), model, WORLD, gpu_buffers=buffers)
    averager = optimizer._averager
    go_on = averager._go_on

    def fail(weight: torch.Tensor) -> None:
        go_on(weight)
        if WORLD.rank == WORLD.size - 1:
            raise ArithmeticError("the averager's hook raises")

    averager._go_on = fail
    try:
        loss_of(model, torch.randn(4, 5).to(device)).backward()
        told = "nothing"
    except (ArithmeticError, RuntimeError) as error:
        told = f"{type(error).__name__}: {error}"
    averager._go_on = go_on
    optimizer.zero_grad()
    loss_of(model, torch.randn(4, 5).to(device)).backward()
    optimizer.step()
    equal = len(set(WORLD.allgather(checksum(named_state(model))))) == 1
    optimizer.close()
    return [*WORLD.allgather(told), "equal" if equal else "different"]


def touching(device: torch.device) -> dict[str, str]:
    """Return the errors of what takes the device's memory for the host's."""
    values = torch.ones(4, device=device)
    told = {}
    touches: dict[str, Callable[[], object]] = {
        "NumPy": values.numpy,
        "PyTorch": lambda: values + torch.ones(4),
        "MPI": lambda: WORLD.Allreduce(MPI.IN_PLACE, values),
        "another device": lambda: torch.ones(4, device=torch.device(device.type, 1)).sum(),
    }
    for by, touch in touches.items():
        try:
            touch()
            told[by] = "not refused"
        except (RuntimeError, TypeError, ValueError) as error:
            told[by] = f"refused: {error}"
    ended = subprocess.run([sys.executable, "-c", POINTER], check=False).returncode
    told["a pointer"] = "refused: SIGSEGV" if ended == -signal.SIGSEGV else f"not refused, status {ended}"
    return told


def by_horovod(device: torch.device) -> dict[str, str]:
    """Return the way of gradients of a Horovod that hands the device's memory to MPI, or why it is refused.

    This stack has no Horovod: what it says of its build stands here.
    """
    built = SimpleNamespace(cuda_built=lambda: True, nccl_built=lambda: 0)
    aware, unaware = Answer(True, "a test says so"), Answer(False, "MPIX_Query_cuda_support: 0")
    crash = "a test process that sums GPU memory ended with signal 11"
    libraries = {"aware": (aware, None), "unaware": (unaware, None), "crashes": (aware, crash)}
    told = {}
    for name, (answer, fault) in libraries.items():
        with (
            mock.patch.dict(sys.modules, {"horovod": SimpleNamespace(torch=built), "horovod.torch": built}),
            mock.patch.object(simulated_gpu.Simulated, "ask_mpi", return_value=answer),
            mock.patch.object(simulated_gpu.Simulated, "survives", return_value=fault),
        ):
            try:
                told[name] = horovod_gpu.require_path(WORLD, device)
            except Refused as error:
                told[name] = f"refused: {error}"
    return told


class OpenMpi(MPI.Intracomm):
    """A communicator of a GPU-aware Open MPI, whose non-blocking collectives crash on memory of the device."""

    def Iallreduce(self, send: Any, receive: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        assert not isinstance(receive, torch_devices.DeviceMemory)
        return super().Iallreduce(send, receive, op)


def main() -> None:
    file, *planted = sys.argv[1:]
    cases = {"sgd": CASES["sgd"]} if planted else CASES
    device = simulated_gpu.install()
    found: dict[str, Any] = {name: {"cpu": WORLD.allgather(train(case, "auto", HOST))} for name, case in cases.items()}
    simulated_gpu.BUGS.update(planted[:1])
    for name, case in cases.items():
        for buffers in planted[1:] or ("staged", "auto"):
            found[name][buffers] = WORLD.allgather(train(case, buffers, device))
        if not planted:
            with mock.patch.object(mpi_library, "version", return_value="Open MPI v4.1.4"):
                found[name]["open mpi"] = WORLD.allgather(train(case, "auto", device, OpenMpi(WORLD)))
    if not planted:
        found["touching"] = touching(device)
        found["by Horovod"] = WORLD.allgather(by_horovod(device))
        found["raising"] = {buffers: raising(buffers, device) for buffers in ("staged", "auto")}
    if WORLD.rank == 0:
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
