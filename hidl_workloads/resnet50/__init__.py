"""Data-parallel ResNet-50 training on synthetic images, with PyTorch or TensorFlow.

The model is He et al., "Deep Residual Learning for Image Recognition" (2015).
"""
