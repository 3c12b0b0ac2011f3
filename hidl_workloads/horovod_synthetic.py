"""Run one of Horovod's synthetic benchmarks, as its file is, in a stack of today.

``python -m hidl_workloads.horovod_synthetic FILE [ARGUMENT...]``, for ``pytorch_synthetic_benchmark.py`` and
``tensorflow2_synthetic_benchmark.py`` of Horovod's examples. Two things that they use are not as they were: torchvision
has no build for every CPU build of PyTorch, so its place is taken by a module with our ResNet-50; and the variables of
a Keras optimizer are a list, no longer a function that gives one. Both are provided in this process alone.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def main(arguments: list[str]) -> None:
    """Run the file ``arguments[0]`` with the rest as its arguments."""
    script = Path(arguments[0])
    source = script.read_text(encoding="utf-8")
    if "torchvision" in source and importlib.util.find_spec("torchvision") is None:
        _provide_torchvision()
    if "opt.variables()" in source:
        _let_variables_be_called()
    sys.argv = [str(script), *arguments[1:]]
    runpy.run_path(str(script), run_name="__main__")


def _provide_torchvision() -> None:
    """``torchvision.models.resnet50()``: the same parameters, of the same names and initial values."""
    from hidl_workloads.resnet50 import torch_network

    models = ModuleType("torchvision.models")
    models.resnet50 = torch_network  # type: ignore[attr-defined]  # a module that is made here
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
