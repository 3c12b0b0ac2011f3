"""Training of Keras models with hyparflow, on synthetic images.

``python -m hidl_workloads.hyparflow.resnet --depth=56 --mode=model ...``, likewise ``vgg`` and ``amoebanet``;
``parameters.Parameters`` lists the arguments that all of them take.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"  # Keras reads it when it is imported
