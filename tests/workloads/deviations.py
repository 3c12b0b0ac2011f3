"""Programs of the oracles that other libraries do not train as one process does, and why.

docs/how-to/train-data-parallel.md shows them: a program is equal, is refused for a reason, or differs for a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The result of a program that waits for ever.
NEVER_ENDS = "does not end"


@dataclass(frozen=True)
class Deviation:
    """What a library makes of a program: other numbers, or the beginning of an error, and the reason."""

    reason: str
    error: str = ""

    def __str__(self) -> str:
        if not self.error:
            return f"different: {self.reason}"
        if self.error == NEVER_ENDS:
            return f"{NEVER_ENDS}: {self.reason}"
        return f"refused: {self.reason} (`{self.error} ...`)"


_BATCHES = Deviation("`batches` belongs to hidl", "AttributeError: 'SGD' object has no attribute 'batches'")

_CLEARED = Deviation(
    "between `backward` and `step`, gradients cannot be cleared",
    "AssertionError: optimizer.zero_grad() was called after loss.backward()",
)
_UNNAMED = Deviation(
    "it requires all parameters of the optimizer to be parameters of the model",
    "ValueError: named_parameters was specified, but one or more model parameters were not named.",
)
_IN_STEP = Deviation("gradients are averages only in `step`; changes before are overwritten, or are those of one rank")
_ZEROS = Deviation("a parameter without a gradient gets zeros, so momentum and weight decay move it")
#: Of Horovod's optimizer, used as its documentation has it. tests/workloads/test_horovod.py runs the programs.
BY_HOROVOD = {
    "accumulations begun again": _CLEARED,
    "adversaries": Deviation(
        "one optimizer's step takes one backward pass, or a number that is set before",
        "AssertionError: Gradients were computed more than backward_passes_per_step times",
    ),
    "amp with overflow": _CLEARED,
    "assigned gradients": _IN_STEP,
    "batches left out": _CLEARED,
    "clipped": _IN_STEP,
    "compiled": _ZEROS,
    "epochs that end with the shortest": _BATCHES,
    "everything is given to all": Deviation(
        "extra state cannot be broadcast", "AttributeError: 'dict' object has no attribute 'type'"
    ),
    "frozen in mid training": _ZEROS,
    "functions with gradients of their own": _UNNAMED,
    "line searches": _CLEARED,
    "parameters outside of the model": _UNNAMED,
    "unfrozen later": _ZEROS,
    "unused layers": _ZEROS,
}

#: Programs that were not yet run with Horovod.
UNTRIED_BY_HOROVOD = {
    "buffers changed alike",
    "compiled steps",
    "compiled whole steps",
    "converted models",
    "expanded gradients",
    "gradients changed by tensor hooks",
    "gradients in other memory",
    "gradients written in place",
    "hooks of any order",
    "hooks on sparse gradients",
    "kept gradients",
    "layers shared by checkpoints",
    "offloaded gradients",
    "orders in memory of each rank",
    "second module with buffers",
    "slices",
    "sparse gradients changed in place",
    "statistics of averaged weights",
}

_AFTERWARDS = Deviation("gradients that change after the backward pass are not averaged again")
_OUTSIDE = Deviation("parameters outside of the model are not averaged")
_PART = Deviation("a call of a part of the model is not seen")
_TWO_CALLS = Deviation("a second forward pass before the backward pass is not seen")
_UNUSED = Deviation(
    "each pass must reach all parameters that required gradients when the model was wrapped",
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
)
#: Of DistributedDataParallel over MPI (mpi4c10d), which each call of the whole model goes through, with its default
#: options. With gloo, those of the programs that were tried have the same differences to the last digit.
BY_TORCH = {
    "adversaries": _UNUSED,
    "assigned gradients": Deviation("gradients of `torch.autograd.grad` are not averaged"),
    "checkpoints and hooks": _PART,
    "compiled": _UNUSED,
    "converted models": Deviation("a parameter that changes its type and back is no longer averaged"),
    "epochs that end with the shortest": _BATCHES,
    "everything is given to all": Deviation("extra state is not broadcast"),
    "frozen in mid training": _UNUSED,
    "functions with gradients of their own": _OUTSIDE,
    "gradients changed by tensor hooks": _PART,
    "gradients written in place": _AFTERWARDS,
    "hooks of any order": Deviation("the averages overwrite what hooks on parameters change after it has read them"),
    "hooks on sparse gradients": Deviation(
        "a gradient must be sparse in each pass, or in none", "RuntimeError: Expected variable to have sparse gradient."
    ),
    "kept gradients": _TWO_CALLS,
    "layers shared by checkpoints": Deviation(
        "reentrant checkpoints may not share a layer",
        "RuntimeError: !unmarked_param_indices.empty() INTERNAL ASSERT FAILED",
    ),
    "line searches": Deviation("each rank's search decides by the loss of its own batch"),
    "low rank adapters": Deviation("parameters that join a wrapped model are not averaged"),
    "orders in memory of each rank": Deviation("ranks whose strides differ wait for each other", NEVER_ENDS),
    "parameters outside of the model": _OUTSIDE,
    "second module with buffers": _PART,
    "sparse gradients changed in place": _AFTERWARDS,
    "unfrozen later": Deviation("parameters that begin to require gradients are not averaged"),
    "unused layers": _PART,
    "used on rank 0 alone": _PART,
}

_OWN_CALL = "UnsupportedModel: model 'late' (Late) has a call() of its own"
_OWN_STEP = "UnsupportedModel: model 'adversaries' (Adversaries) has a call() of its own"
_OWN_CALLS = "a model with a `call` or a `train_step` of its own cannot be divided"
_BACKUP = Deviation("hyparflow has checkpoints of its own", "RequestError: BackupAndRestore cannot be used here")
#: What hyparflow refuses of the Keras programs, by the number of partitions and of replicas of the model.
BY_HYPARFLOW = {
    "2 partitions": {
        "adversaries": Deviation(_OWN_CALLS, _OWN_STEP),
        "built late": Deviation(_OWN_CALLS, _OWN_CALL),
        "built late, eagerly": Deviation(_OWN_CALLS, _OWN_CALL),
        "metrics by their states": Deviation(
            "one layer cannot be divided", "PlanError: sequential has 1 nodes: too few for 2 partitions"
        ),
        "restored on rank 0": _BACKUP,
    },
    "2 replicas": {
        "adversaries": Deviation(_OWN_CALLS, _OWN_STEP),
        "built late": Deviation(_OWN_CALLS, _OWN_CALL),
        "built late, eagerly": Deviation(_OWN_CALLS, _OWN_CALL),
        "restored on rank 0": _BACKUP,
    },
}
