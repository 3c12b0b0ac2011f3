"""Data-parallel training over MPI: every rank computes gradients of its own batch, and all apply their average.

For programs (docs/how-to/train-data-parallel.md):

- ``torch_optimizer``, ``keras_optimizer``: a ``DistributedOptimizer`` each, and Keras's callbacks
- ``torch_normalization``: batch normalization over all ranks' batches
- ``weights``: the proof of equal weights at the end (``checksum``)

Below them:

- ``torch_gradients``, ``tensorflow_gradients``: gradients, averaged while the backward pass still runs;
  ``torch_buffers``, ``tensorflow_buffers``: their places, ``torch_state``: what a model holds
- ``torch_devices``, ``tensorflow_devices``: a GPU's memory, and streams; ``torch_lanes``: how PyTorch's buffers on it
  are summed, staged through the host or by a GPU-aware MPI; ``gpu_path``: which of these, ``gpu_proof``: whether MPI
  really sums what is there
- ``buckets``: which gradients travel together, in the order of the backward pass
- ``call_order``: where a rank ends or does less than the others, all raise an error
- ``allreduce``, ``shared_memory``, ``compression``: non-blocking sums of flat buffers over the ranks, by MPI, in a
  node's shared memory, and as 16-bit numbers; ``choice``: which of them

Gradients are float32 or float64: MPI has no bfloat16. Mixed precision with float32 weights (``torch.autocast``,
Keras's ``mixed_bfloat16``) yields float32 gradients and is supported. PyTorch's weights kept in bfloat16 or float16 are
refused; gradients of Keras's are summed in float32.
Import the submodules: this package imports neither MPI nor a framework by itself.
"""
