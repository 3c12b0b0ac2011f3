"""ResNet-50 v1.5 for PyTorch: 25,557,032 parameters for 1000 classes (the stride of a block is in its 3x3 convolution).

He et al., "Deep Residual Learning for Image Recognition", 2015, table 1.
"""

from __future__ import annotations

import torch
from torch import nn

_EXPANSION = 4
_BLOCKS = (3, 4, 6, 3)
_WIDTHS = (64, 128, 256, 512)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a short cut; input (N, ``channels``, H, W)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, 4·width, H/stride, W/stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Sequential:
    """The network; input (N, 3, H, W), output (N, ``classes``) logits."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for stage, (blocks, width) in enumerate(zip(_BLOCKS, _WIDTHS, strict=True)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, stride=2 if stage > 0 and block == 0 else 1))
            channels = width * _EXPANSION
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
