"""Data-parallel training of ResNet-50, which ``hidl_workloads.image_training`` implements.

``python -m hidl_workloads.resnet50 --framework=torch --batch=8 ...``; ``--help`` lists the parameters.
"""

from __future__ import annotations

from hidl_workloads.image_training import Images
from hidl_workloads.parameters import Resnet50
from hidl_workloads.training.program import main

if __name__ == "__main__":
    main("resnet50", Resnet50, Images)
