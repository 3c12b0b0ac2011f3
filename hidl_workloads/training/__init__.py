"""Training on several ranks: the loop and the libraries that join them. A model joins in a file of its own.

A model (hidl_workloads/image_training.py, hidl_workloads/gpt.py) derives from ``model.Model`` and calls
``program.main``; its recipe extends recipes/workloads/_training.yaml.

- ``program``: the command line, the report and the metrics; ``loop``: timed steps; ``order``: that of the data
- ``data``: data sets of archives, and batches that are read ahead
- ``torch_trainer``, ``tensorflow_trainer``: a training step in each framework
- ``torch_strategies``, ``tensorflow_strategies``: gradients averaged by ``data_parallel`` or Horovod;
  ``torch_parallel``: DDP, FSDP2, tensor parallelism and pipelines of PyTorch; ``strategy``: what each supports
- ``torch_memory``: the predicted memory of a step
- ``torch_checkpoint``, ``keras_checkpoint``: what a checkpoint holds of a training
- ``data_parallel``: optimizers that average gradients over MPI, for any program

PyTorch computes on the rank's GPU where the run does; TensorFlow on processors alone. Import the submodules: this
package imports neither MPI nor a framework by itself.
"""
