"""TensorFlow's number of threads."""

from __future__ import annotations

import os


def set_threads() -> None:
    """Set TensorFlow's threads from its own variables, else from ``OMP_NUM_THREADS``, else leave them.

    This must come before TensorFlow's first operation.
    """
    import tensorflow as tf

    everywhere = os.environ.get("OMP_NUM_THREADS", "0")  # 0: TensorFlow chooses
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ.get("TF_NUM_INTRAOP_THREADS", everywhere)))
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("TF_NUM_INTEROP_THREADS", everywhere)))
