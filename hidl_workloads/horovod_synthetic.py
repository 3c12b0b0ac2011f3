"""Run one of Horovod's synthetic benchmarks, as its file is, in a stack of today.

``python -m hidl_workloads.horovod_synthetic FILE [ARGUMENT...]``, for ``pytorch_synthetic_benchmark.py`` and
``tensorflow2_synthetic_benchmark.py`` of Horovod's examples. Two things that they use are not as they were: torchvision
has no build for every CPU build of PyTorch, so its place is taken by a module with our ResNet-50; and the variables of
a Keras optimizer are a list, no longer a function that gives one. Both are provided in this process alone.

In a run on CPUs they get ``--no-cuda``. In a run on GPUs each rank must have its own GPU, and Horovod must be built for
GPUs; otherwise the benchmarks would compute on CPUs, which only one word of their output shows.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hidl_workloads import gpus

if TYPE_CHECKING:
    from mpi4py import MPI


def main(arguments: list[str]) -> None:
    """Run the file ``arguments[0]`` with the rest as its arguments."""
    script = Path(arguments[0])
    source = script.read_text(encoding="utf-8")
    words = arguments[1:]
    if gpus.is_wanted():
        from mpi4py import MPI

        from hidl_workloads.refusal import exit_if_refused

        with exit_if_refused(MPI.COMM_WORLD, "horovod-synthetic"):
            _require_gpus(MPI.COMM_WORLD, source)
    elif gpus.DEVICE in os.environ:
        words = [*words, "--no-cuda"]
    if "torchvision" in source and importlib.util.find_spec("torchvision") is None:
        _provide_torchvision()
    if "opt.variables()" in source:
        _let_variables_be_called()
    sys.argv = [str(script), *words]
    runpy.run_path(str(script), run_name="__main__")


def _require_gpus(communicator: MPI.Comm, source: str) -> None:
    """Raise ``Refused`` on all ranks if the benchmark would not compute on a GPU of each rank's own; collective."""
    from hidl_workloads import torch_device
    from hidl_workloads.refusal import Refused, agree
    from hidl_workloads.training import horovod_gpu
    from hidl_workloads.training.data_parallel.shared_memory import node_of

    if "horovod.tensorflow" in source:
        raise Refused("Horovod's operations for TensorFlow were built for CPUs: use --device cpu")
    torch_device.require_gpu(communicator)
    import torch

    node = node_of(communicator)
    local_rank, count = node.rank, torch.cuda.device_count()
    node.Free()
    agree(communicator, None if local_rank < count else f"more ranks than GPUs ({count}): use fewer ranks per node")
    horovod_gpu.require_path(communicator, torch.device("cuda", local_rank))


def _provide_torchvision() -> None:
    """``torchvision.models.resnet50()`` and others: the same parameters, of the same names and initial values."""
    from hidl_workloads import image_networks

    models = ModuleType("torchvision.models")
    for name in ("resnet50", "resnet101", "resnet152", "vgg16"):
        setattr(models, name, getattr(image_networks, name))
    torchvision = ModuleType("torchvision")
    torchvision.models = models  # type: ignore[attr-defined]
    sys.modules.update({"torchvision": torchvision, "torchvision.models": models})


def _let_variables_be_called() -> None:
    """``optimizer.variables()`` gives the list that ``optimizer.variables`` is."""
    import keras

    base = next(each for each in keras.optimizers.Optimizer.__mro__ if "variables" in vars(each))
    listed: Any = vars(base)["variables"]

    class Variables(list):  # type: ignore[type-arg]
        def __call__(self) -> Variables:
            return self

    base.variables = property(lambda self: Variables(listed.fget(self)))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m hidl_workloads.horovod_synthetic FILE [ARGUMENT...]")
    main(sys.argv[1:])
