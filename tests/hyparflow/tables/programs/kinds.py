"""The public classes of the installed Keras, and an object of each: new ones join by themselves."""

from __future__ import annotations

import inspect
from typing import Any

import keras

#: Modules of Keras whose public classes are listed; ``applications`` are functions.
MODULES = (
    "layers", "optimizers", "losses", "metrics", "regularizers", "constraints", "initializers", "callbacks",
    "applications",
)  # fmt: skip
#: What cannot stand in a model or a fit by itself, and why.
NOT_TRAINED = {
    "layers": {
        "FlaxLayer": "requires JAX and Flax",
        "InputLayer": "what keras.Input makes: in every model",
        "InputSpec": "not a layer",
        "JaxLayer": "requires JAX",
        "Layer": "base class",
        "TFSMLayer": "requires a SavedModel; trains nothing",
        "TorchModuleWrapper": "requires PyTorch",
        "Wrapper": "base class",
    },
    "optimizers": {"Optimizer": "base class", "OptimizerMap": "the argument of MultiOptimizer"},
    "losses": {"Loss": "base class"},
    "metrics": {
        "Mean": "takes values, not targets and predictions: not for compile()",
        "Metric": "base class",
        "Sum": "takes values, not targets and predictions: not for compile()",
    },
    "regularizers": {"Regularizer": "base class"},
    "constraints": {"Constraint": "base class"},
    "initializers": {
        "Initializer": "base class",
        "STFT": "makes the windows of an STFT, not weights of a dense layer",
    },
    "callbacks": {"Callback": "base class", "CallbackList": "a container of callbacks"},
}
#: Values for required parameters, by name.
USUAL: dict[str, Any] = {
    "activation": "tanh", "axes": -1, "cropping": 1, "dims": (2, 1), "factor": 0.2, "filters": 3, "head_dim": 4,
    "height": 4, "height_factor": 0.2, "key_dim": 4, "kernel_size": 2, "max_number": 4, "n": 2, "num_classes": 3,
    "num_heads": 2, "num_key_value_heads": 1, "num_query_heads": 2, "output_size": 2, "padding": 1, "pool_size": 2,
    "precision": 0.5, "rate": 0.4, "recall": 0.5, "scale": 0.5, "sensitivity": 0.5, "specificity": 0.5, "size": 2,
    "stddev": 0.3,
    "target_class_ids": (0,), "target_shape": (-1,), "units": 3, "value_range": (0.0, 1.0), "width": 4,
    "width_factor": 0.2, "max_boxes": 4,
}  # fmt: skip


def names(module: str) -> dict[str, Any]:
    """Name -> class (function, of ``applications``) of a module's public ones; of aliases the first by the alphabet."""
    public = vars(getattr(keras, module))
    wanted = inspect.isfunction if module == "applications" else inspect.isclass
    found = {public[name]: name for name in sorted(public, reverse=True) if wanted(public[name])}
    return {name: kind for kind, name in sorted(found.items(), key=lambda each: each[1])}


def made(module: str, name: str) -> Any:
    """An object of a class, of the arguments in SPECIAL or the usual ones."""
    kind = names(module)[name]
    if special := SPECIAL.get(f"{module}.{name}"):
        return special(kind)
    parameters = inspect.signature(kind.__init__).parameters
    given = {
        each: USUAL[each]
        for each, parameter in parameters.items()
        if each in USUAL and parameter.default is inspect.Parameter.empty
    }
    if "seed" in parameters:
        given["seed"] = 3
    return kind(**given)


def _schedule(epoch: int, rate: float) -> float:
    return rate * 0.5


_LAYERS = keras.layers
#: Objects of the classes that need more.
SPECIAL: dict[str, Any] = {
    "layers.Bidirectional": lambda kind: kind(_LAYERS.LSTM(3)),
    "layers.CategoryEncoding": lambda kind: kind(4, output_mode="multi_hot"),
    "layers.CenterCrop": lambda kind: kind(4, 4),
    "layers.Discretization": lambda kind: kind(bin_boundaries=[0.2, 0.5, 0.8]),
    "layers.EinsumDense": lambda kind: kind("ab,bc->ac", output_shape=3, bias_axes="c"),
    "layers.Embedding": lambda kind: kind(4, 3),
    "layers.GRUCell": lambda kind: _LAYERS.RNN(kind(3)),
    "layers.Hashing": lambda kind: kind(5),
    "layers.GroupNormalization": lambda kind: kind(2),
    "layers.HashedCrossing": lambda kind: kind(5),
    "layers.IntegerLookup": lambda kind: kind(vocabulary=[0, 1, 2], num_oov_indices=1),
    "layers.LSTMCell": lambda kind: _LAYERS.RNN(kind(3)),
    "layers.Lambda": lambda kind: kind(lambda x: x * 2.0),
    "layers.MelSpectrogram": lambda kind: kind(num_mel_bins=4, sampling_rate=64, sequence_stride=8, fft_length=16),
    "layers.Pipeline": lambda kind: kind([_LAYERS.Rescaling(0.5), _LAYERS.Rescaling(2.0)]),
    "layers.Permute": lambda kind: kind((2, 1)),
    "layers.RNN": lambda kind: kind(_LAYERS.SimpleRNNCell(3)),
    "layers.RandomCrop": lambda kind: kind(4, 4, seed=3),
    "layers.RandomPosterization": lambda kind: kind(4, value_range=(0.0, 1.0)),
    "layers.RepeatVector": lambda kind: kind(2),
    "layers.Reshape": lambda kind: kind((-1, 1)),
    "layers.Resizing": lambda kind: kind(4, 4),
    "layers.ReversibleEmbedding": lambda kind: kind(4, 3),
    "layers.STFTSpectrogram": lambda kind: kind(frame_length=8, frame_step=4, fft_length=8),
    "layers.SimpleRNNCell": lambda kind: _LAYERS.RNN(kind(3)),
    "layers.SpectralNormalization": lambda kind: kind(_LAYERS.Dense(3)),
    "layers.StackedRNNCells": lambda kind: _LAYERS.RNN(kind([_LAYERS.SimpleRNNCell(3), _LAYERS.SimpleRNNCell(2)])),
    "layers.StringLookup": lambda kind: kind(vocabulary=["a", "b"]),
    "layers.TextVectorization": lambda kind: kind(vocabulary=["a", "b"], output_sequence_length=4),
    "layers.TimeDistributed": lambda kind: kind(_LAYERS.Dense(3)),
    "optimizers.LossScaleOptimizer": lambda kind: kind(keras.optimizers.SGD(0.1)),
    "optimizers.MultiOptimizer": lambda kind: kind(
        keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01), {"first/.*": keras.optimizers.SGD(0.1)})
    ),
    "metrics.IoU": lambda kind: kind(3, (0,), sparse_y_pred=False),
    "metrics.MeanIoU": lambda kind: kind(3, sparse_y_pred=False),
    "metrics.BinaryIoU": lambda kind: kind((0, 1), threshold=0.4),
    "metrics.MeanMetricWrapper": lambda kind: kind(keras.losses.mean_squared_error),
    "initializers.Constant": lambda kind: kind(0.2),
    "callbacks.BackupAndRestore": lambda kind: kind("backup"),
    "callbacks.CSVLogger": lambda kind: kind("log.csv"),
    "callbacks.EarlyStopping": lambda kind: kind("val_loss", patience=1, min_delta=10.0, restore_best_weights=True),
    "callbacks.LearningRateScheduler": lambda kind: kind(_schedule),
    "callbacks.ModelCheckpoint": lambda kind: kind("best.keras", monitor="val_loss", save_best_only=True),
    "callbacks.OrbaxCheckpoint": lambda kind: kind("orbax"),
    "callbacks.ReduceLROnPlateau": lambda kind: kind("val_loss", patience=1, min_delta=10.0),
    "callbacks.TensorBoard": lambda kind: kind("events"),
}
