"""Data-parallel training of ResNet-50 on synthetic images, for PyTorch and TensorFlow, on CPUs.

``python -m hidl_workloads.resnet50 --framework=torch --batch=8 ...``; ``parameters.Parameters`` lists all arguments.
GPUs are not used, even where there are some: gradients go to MPI from the host's memory. The output says ``on CPU``.
"""
