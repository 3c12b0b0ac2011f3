"""ResNet-50 with PyTorch on the CPU."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from hidl_workloads.data_parallel import torch as data_parallel
from hidl_workloads.resnet50.model_torch import resnet50
from hidl_workloads.resnet50.settings import Settings


class Trainer:
    """A model, its optimizer and one rank's images; ``step`` trains once."""

    def __init__(self, settings: Settings, world: Any) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads()))
        torch.manual_seed(settings.seed)
        self._autocast = settings.precision == "bfloat16"
        self.model = resnet50()
        data_parallel.broadcast(self.model, world)
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[settings.optimizer]
        self._optimizer = kind(self.model.parameters(), lr=settings.learning_rate)
        self._average = data_parallel.GradientAverage(self.model, world, bucket_bytes=settings.bucket_bytes)
        own = torch.Generator().manual_seed(settings.seed + 1 + world.rank)
        self._images = torch.randn(settings.batch, 3, settings.image_size, settings.image_size, generator=own)
        self._labels = torch.randint(1000, (settings.batch,), generator=own)

    def step(self) -> float:
        """One step on this rank's images; return the loss before it."""
        self._optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            loss = nn.functional.cross_entropy(self.model(self._images), self._labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._average.finish()
        self._optimizer.step()
        return loss.item()

    def checksum(self) -> str:
        """The checksum of the weights."""
        return data_parallel.checksum(self.model)

    @staticmethod
    def versions() -> dict[str, str]:
        """What computed."""
        return {"torch": torch.__version__}
