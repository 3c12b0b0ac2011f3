"""Data-parallel training over MPI: every rank computes gradients of its own batch, and all apply their average.

- ``buckets``: which gradients travel together, in the order of the backward pass
- ``allreduce``: non-blocking sums of flat buffers over the ranks
- ``weights``: equal weights at the start (``broadcast``), and the proof of equal weights at the end (``checksum``)
- ``torch_gradients``: PyTorch's gradients, averaged while the backward pass still runs
- ``tensorflow_gradients``: TensorFlow's gradients, averaged between two ``tf.function`` calls

Gradients are float32 or float64: MPI has no bfloat16. Mixed precision with float32 weights (``torch.autocast``,
Keras's ``mixed_bfloat16``) yields float32 gradients and is supported; weights kept in bfloat16 or float16 are refused.
Import the submodules: this package imports neither MPI nor a framework by itself.
"""
