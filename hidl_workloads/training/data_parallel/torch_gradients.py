"""PyTorch's gradients, averaged over the ranks while the backward pass still runs."""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _NormBase

from hidl_workloads.training.data_parallel import torch_state, weights
from hidl_workloads.training.data_parallel.buckets import BUCKET_BYTES, Bucket, Gradient, plan
from hidl_workloads.training.data_parallel.call_order import order_of
from hidl_workloads.training.data_parallel.choice import check, choose, require_the_same
from hidl_workloads.training.data_parallel.compression import Compression
from hidl_workloads.training.data_parallel.gpu_path import Buffers, Path, choose_path
from hidl_workloads.training.data_parallel.torch_buffers import (
    Changes,
    Filling,
    Group,
    LaneOf,
    Sparse,
    filling_of,
    layout_of,
    torch_halves,
)
from hidl_workloads.training.data_parallel.torch_devices import Accelerator, accelerator_of, is_host
from hidl_workloads.training.data_parallel.torch_lanes import Direct, Staged
from hidl_workloads.training.data_parallel.torch_state import Named, broadcast, bytes_of

Statistics = Literal["average", "local"]
Uneven = Literal["refuse", "stop"]
_NOTHING: Any = object()
_COMPARED = 4
"""Weights that are compared in a step, in turn; four take 40 to 50 us."""
_COMPARED_BYTES = 2**16
"""Bytes of each of them that are compared."""
_FAR = 1e-3
"""Relative distance of weights that are not equal; ranks with other orders in memory round differently."""


class GradientAverager:
    """Averages the gradients of ``model`` over ``communicator``, by the end of each backward pass.

    ::

        optimizer.zero_grad()
        loss.backward()        # sums start while it runs; when it returns, the gradients are averages
        averager.finish()
        optimizer.step()

    Each gradient is copied into its place in a flat buffer when all hooks on its parameter have run. A full buffer is
    summed, strictly in the planned order, so that all ranks start the same sums; at the end of the pass, the averages
    are copied into the gradients, which are tensors of the user's own in any memory. What touches gradients afterwards
    (clipping, ``GradScaler``) sees the same averages on all ranks, and decides alike. If a gradient changes after it
    was copied, by a hook on another parameter or a nested pass, all ranks sum again at the end.

    - ``bucket_bytes``: the length of a buffer; ``compression``: what travels (see ``compression.py``)
    - ``average=False`` leaves the sums over the ranks as they are
    - ``accumulate``: backward passes of which only the last one averages; torch adds their gradients
    - ``share_memory=False`` sends everything through MPI, on one node too
    - ``gpu_buffers``: how gradients on a GPU reach MPI (see ``gpu_path.py``); ``path`` tells which way was taken
    - ``statistics``: running means and variances of normalization layers are averaged with the gradients, and other
      buffers must be changed alike on all ranks; or all of them stay ``"local"`` to each rank

    A gradient that some ranks lack counts as zero there; one that all lack stays ``None``. A gradient that was not
    cleared is added to, which is right for averages: all ranks have the same one. A parameter that begins to require a
    gradient is included from then on. Sparse gradients of embeddings stay sparse. Parameters may be on a GPU, or some
    there and some on the host; what is raised in a hook of such ones reaches the caller when the pass is over.

    Every backward pass that reaches these parameters is collective, as are the constructor, ``add``, ``finish`` and
    ``close``. On one rank nothing is done at all. Raises ``TypeError`` for types that MPI does not have and
    ``ValueError`` for ranks that disagree.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        model: torch.nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        *,
        compression: Compression = "none",
        average: bool = True,
        accumulate: int = 1,
        share_memory: bool = True,
        statistics: Statistics = "average",
        gpu_buffers: Buffers = "auto",
    ) -> None:
        check(compression, accumulate)
        if statistics not in get_args(Statistics):
            raise ValueError(f"statistics must be one of {', '.join(get_args(Statistics))}, not {statistics!r}")
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Those that step by these gradients."""
        self._cleared: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.model = model
        self.options = (bucket_bytes, compression, average, accumulate, share_memory, statistics, gpu_buffers)
        self.path: Path | None = None
        """The way of gradients on a GPU; None where there are none, or on one rank."""
        self._gpu_buffers: Buffers = gpu_buffers
        self._accelerators: dict[torch.device, Accelerator] = {}
        self._failure: Exception | None = None
        self._bucket_bytes, self._compression, self._average = bucket_bytes, compression, average
        self._accumulate, self._share_memory, self._statistics = accumulate, share_memory, statistics
        self._sole = False
        self._versions: dict[int, int] = {}
        self._buffers: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        """The buffers that were compared last, by their ``id``, and their versions."""
        self._tensors: dict[int, int] = {}
        """The address of each watched tensor, by the ``id`` of its Python object, which may get another one."""
        self._compared = 0
        self._order = order_of(communicator)
        self._order.meet("a new optimizer")
        self._communicator = communicator.Dup()
        self._others: list[Named] = []
        self._groups: list[Group] = []
        self._sparse: list[Sparse] = []
        self._places: dict[int, tuple[Group, int, int]] = {}
        self._planned: set[int] = set()
        self._watched: dict[int, tuple[torch.Tensor, torch.utils.hooks.RemovableHandle]] = {}
        self._pass: weakref.ref[_Pass] | None = None
        self._passes = 0
        self._late = False
        self._ready: dict[int, torch.Tensor] = {}
        self._overflow: FloatingPointError | None = None
        if communicator.size > 1:
            require_the_same(self._communicator, [], *self.options)
            self._refuse_modules([])
            self._include(self._unplanned(), compare=False)

    def add(self, named: Iterable[Named]) -> None:
        """Include named parameters, of the model or others, with the values of rank 0; collective."""
        self._order.meet("new parameters")
        self._sole = False
        new = [(name, weight) for name, weight in named if id(weight) not in self._planned]
        held = {id(weight) for _, weight in self._candidates()}
        others = [(name, weight) for name, weight in new if id(weight) not in held]
        self._refuse_modules(torch_state.modules_beside(self.model, others))
        self._others += others
        broadcast(self._communicator, torch.nn.Module(), new)
        if self._communicator.size > 1:
            self._include(self._unplanned(), compare=False)
        self._moved_buffers()  # all have rank 0's now
        self.note_weights()

    def note_weights(self) -> None:
        """Take the weights as they are for equal on all ranks: changes from now on are compared in ``finish``."""
        self._versions = {key: weight._version for key, (weight, _) in self._watched.items()}

    def shares(self, named: Iterable[Named]) -> list[str]:
        """Return the names of those parameters whose gradients this one averages."""
        return [name for name, weight in named if id(weight) in self._watched]

    def spans(self, communicator: MPI.Comm) -> bool:
        """Return True if the averages are over the ranks of ``communicator``, in its order."""
        return bool(MPI.Comm.Compare(communicator, self._communicator) == MPI.CONGRUENT)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # a compiled step calls it as it is
    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget the backward passes so far when all ``optimizers`` have cleared their gradients, to None or zero.

        What gradients a rank has does not matter, so that all ranks decide alike.
        """
        self._discard_failed_pass()
        self._overflow = None
        self._cleared.add(optimizer)
        if self._cleared.issuperset(self.optimizers):
            self._passes = 0
            for filling in self._fillings():
                filling.forget()

    def finish(self, settings: str = "") -> None:
        """Average what is not averaged yet: passes of an unfinished accumulation, and gradients that were assigned.

        Raises ``FloatingPointError``, on all ranks alike, where a compressed gradient is not finite; ``ValueError`` if
        ranks have different ``settings`` (those of the optimizer) or have changed weights or buffers differently since
        the last step, and if ``torch.distributed`` averages too.
        """
        if self._communicator.size == 1:
            return
        if torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                "step was called in a backward pass, before gradients were averaged: call it after backward has "
                "returned, not in a hook"
            )
        if not self._sole:
            torch_state.refuse_other_parallelism(list(self._candidates()))
            self._sole = True
        self._discard_failed_pass()
        changes = [filling.changes() for filling in self._fillings()]
        rewritten = [grad for each in changes for grad in each.rewritten]
        rewritten += [grad for each in self._sparse for grad in each.delivered_values()]
        mark, values = zlib.crc32(settings.encode()), _checksum(rewritten)
        due = int(self._due(changes))
        moved = _checksum([weight for weight, _ in self._watched.values() if self._is_moved(weight)])
        sample = self._sample()
        own = _checksum(sample)
        buffers = self._moved_buffers()
        state = zlib.crc32(repr([(tuple(each.shape), zlib.crc32(bytes_of(each).data)) for each in buffers]).encode())
        due, largest, smallest, most, least, high, low, top, bottom, *states = self._order.meet(
            "a step", due, mark, -mark, values, -values, moved, -moved, own, -own, state, -state
        )
        if states[0] != -states[1]:
            self._require_close_buffers(buffers)
        if top != -bottom:
            self._require_close(sample)
        if high != -low:
            weights.require_equal(
                self._communicator,
                {name: weights.checksum([(name, bytes_of(weight))]) for name, weight in self._candidates()},
                "weights were changed differently on the ranks between steps, for example by max_norm of an embedding "
                "or by an optimizer that is not wrapped",
            )
        if largest != -smallest:
            weights.require_equal(
                self._communicator,
                {"the optimizer's settings": settings},
                "average the metric over the ranks before a scheduler uses it",
            )
        if most != -least and not self._average:
            raise RuntimeError(
                "gradients were changed in place differently on the ranks after they were summed over the ranks "
                "(average=False)"
            )
        if due or most != -least:
            self._settle()
        overflow, self._overflow = self._overflow, None
        if overflow is not None:
            raise overflow

    def batches(self, data: Iterable[Any], uneven: Uneven) -> Iterator[Any]:
        """Yield ``data`` while all ranks have some; see ``_Distributed.batches``."""
        if uneven not in get_args(Uneven):
            raise ValueError(f"uneven must be one of {', '.join(get_args(Uneven))}, not {uneven!r}")
        rest = iter(data)
        while True:
            batch = next(rest, _NOTHING)
            some, lacks = self._order.meet("the next batch", int(batch is not _NOTHING), int(batch is _NOTHING))
            if some and lacks and uneven == "refuse":
                weights.require_equal(
                    self._communicator,
                    {"the number of batches": batch is _NOTHING},
                    'give all ranks the same number of batches, or drop the remaining ones with uneven="stop"',
                )
            if lacks:
                return
            yield batch

    def mean(self, value: float) -> float:
        """Return the mean of ``value`` over the ranks, or the sum with ``average=False``; collective."""
        total = self._communicator.allreduce(value)
        return float(total / self._communicator.size if self._average else total)

    def close(self) -> None:
        """Let go of the model, and give the communicator and the buffers back."""
        if not self._order.failure:
            self._order.meet("the end of an optimizer")
        for _, handle in self._watched.values():
            handle.remove()
        self._watched.clear()
        self._tensors.clear()
        if not self._order.failure:  # otherwise, other ranks may never reach these calls
            for group in self._groups:
                group.close()
            self._communicator.Free()
        self._groups, self._sparse, self._others = [], [], []
        self._places.clear()

    def _sample(self) -> list[torch.Tensor]:
        """Return parts of the next weights on the host, of the same weights on all ranks.

        Versions do not show every change: ``weight.data`` hides it, and optimizers may keep state that is not rank 0's.
        """
        weights = [weight for weight, _ in self._watched.values()]
        begin, self._compared = self._compared, (self._compared + _COMPARED) % max(len(weights), 1)
        chosen = (weights[begin:] + weights[:begin])[:_COMPARED]
        return [_part(weight) for weight in chosen if weight.is_cpu and weight.layout is torch.strided]

    def _require_close(self, sample: Sequence[torch.Tensor]) -> None:
        """Raise ``ValueError`` on all ranks if weights differ between ranks, as their ``sample`` shows; collective."""
        sums = [(float(part.double().sum()), float(part.double().abs().sum())) for part in sample]
        first = self._communicator.bcast(sums)
        far = any(
            not abs(total - expected) <= _FAR * max(size, least)
            for (total, size), (expected, least) in zip(sums, first, strict=True)
        )
        if self._communicator.allreduce(int(far), MPI.MAX):
            weights.require_equal(
                self._communicator,
                {name: weights.checksum([(name, bytes_of(weight))]) for name, weight in self._candidates()},
                "weights were changed differently on the ranks, through weight.data, or by an optimizer with values "
                "outside of its state, which DistributedOptimizer does not broadcast",
            )

    def _moved_buffers(self) -> list[torch.Tensor]:
        """Return the buffers of the model that changed since the last call, if ranks must change them alike."""
        if self._statistics == "local" or self._communicator.size == 1:
            return []
        buffers = torch_state.own_buffers(self.model)
        before, self._buffers = self._buffers, {id(each): (weakref.ref(each), each._version) for each in buffers}
        return [each for each in buffers if before.get(id(each)) != self._buffers[id(each)]]

    def _require_close_buffers(self, moved: Sequence[torch.Tensor]) -> None:
        """Raise ``ValueError`` on all ranks if ``moved`` buffers differ by more than rounding; collective."""
        changed = {id(each) for each in moved}
        own = {name: each for name, each in self.model.named_buffers() if id(each) in changed}
        first = self._communicator.bcast({name: each.detach().cpu() for name, each in own.items()})
        far = own.keys() != first.keys() or not all(_is_close(own[name], first[name]) for name in own)
        if self._communicator.allreduce(int(far), MPI.MAX):
            weights.require_equal(
                self._communicator,
                {name: weights.checksum([(name, bytes_of(each))]) for name, each in own.items()},
                "these buffers were changed by each rank's own batch or random numbers: average or broadcast them "
                'before each step, or leave all buffers to each rank by statistics="local"',
            )

    def _refuse_exchanged(self) -> None:
        """Raise ``RuntimeError`` if parameters were exchanged for tensors without the hooks of the averager."""
        for name, weight in self._candidates():
            if self._tensors.get(id(weight), weight._cdata) != weight._cdata:
                raise RuntimeError(
                    f"{name} was replaced by another tensor (torch.utils.swap_tensors, or a conversion under "
                    "set_swap_module_params_on_conversion): close the optimizer before that, and wrap it again"
                )

    def _is_moved(self, weight: torch.Tensor) -> bool:
        """Return True if something other than a step has written to ``weight``."""
        return bool(self._versions.get(id(weight), weight._version) != weight._version)

    def _fillings(self) -> Iterator[Filling]:
        for group in self._groups:
            yield from group.fillings

    def _candidates(self) -> Iterator[Named]:
        yield from self.model.named_parameters()
        yield from self._others

    def _unplanned(self) -> list[Named]:
        return [
            (name, weight)
            for name, weight in self._candidates()
            if weight.requires_grad and id(weight) not in self._planned
        ]

    def _grows(self) -> bool:
        """Return True if parameters have begun to require gradients, without their names."""
        planned = self._planned
        return torch_state.has_unknown(self.model, planned) or any(
            weight.requires_grad and id(weight) not in planned for _, weight in self._others
        )

    def _refuse_modules(self, beside: Sequence[torch.nn.Module]) -> None:
        """Raise ``ValueError`` on all ranks for modules whose state would stay different on each rank; collective.

        ``beside``: modules outside of the model whose parameters the optimizer has.
        """
        if self._communicator.size == 1:
            return
        embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        rescaling = {
            type(module).__name__
            for module in (*self.model.modules(), *beside)
            if isinstance(module, embeddings) and module.max_norm is not None
        }
        with_buffers = {type(module).__name__ for module in beside if any(True for _ in module.buffers(recurse=False))}
        everywhere = self._communicator.allgather((rescaling, with_buffers))
        rescaling, with_buffers = (set().union(*kinds) for kinds in zip(*everywhere, strict=True))
        if rescaling:
            raise ValueError(
                f"max_norm of {', '.join(sorted(rescaling))} rescales rows on the rank that reads them, so weights "
                "would differ between ranks: rescale all rows after each step instead"
            )
        if with_buffers:
            raise ValueError(
                f"the optimizer has parameters of modules outside of the model ({', '.join(sorted(with_buffers))}), "
                "whose buffers would differ between ranks: pass a model with all modules to DistributedOptimizer, "
                "such as torch.nn.ModuleList([model, other])"
            )

    def _include(self, new: Sequence[Named], *, compare: bool) -> None:
        """Give places to ``new`` parameters; ``compare``: their values must be equal on all ranks; collective."""
        for name, weight in self._candidates():
            if torch.nn.parameter.is_lazy(weight):
                raise ValueError(f"{name} has no shape yet: call the model once before this")
        embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        sparse = {id(each.weight) for each in self.model.modules() if isinstance(each, embeddings) and each.sparse}
        dense = [(name, weight) for name, weight in new if id(weight) not in sparse]
        by_device: dict[torch.device, list[Named]] = {}
        for name, weight in dense:
            by_device.setdefault(weight.device, []).append((name, weight))
        gradients = {
            device: [
                Gradient(name, weight.numel(), str(weight.dtype).removeprefix("torch."), tuple(weight.shape))
                for name, weight in named
            ]
            for device, named in by_device.items()
        }
        buckets = {device: plan(each, self._bucket_bytes) for device, each in gradients.items()}
        sparsely = [(name, tuple(weight.shape)) for name, weight in new if id(weight) in sparse]
        if sparsely and not self._average:
            raise ValueError(
                f"average=False does not support sparse gradients: {', '.join(name for name, _ in sparsely)}"
            )
        everything = [gradient for each in gradients.values() for gradient in each]
        require_the_same(self._communicator, everything, sparsely, [device.type for device in by_device])
        if compare:
            weights.require_equal(
                self._communicator,
                {name: weights.checksum([(name, bytes_of(weight))]) for name, weight in new},
                "these parameters had different values on the ranks when they began to require gradients: add them "
                "with add_param_group, or wrap a new optimizer, since both broadcast the values",
            )
        for _, weight in self._candidates():
            self._watch(weight)
        self._planned |= {id(weight) for _, weight in new}
        self._sparse += [Sparse(name, weight) for name, weight in new if id(weight) in sparse]
        for device, named in by_device.items():
            self._groups.append(self._group(device, named, buckets[device]))
            for number, filling in enumerate(self._groups[-1].fillings):
                for position, weight in enumerate(filling.weights):
                    self._places[id(weight)] = (self._groups[-1], number, position)

    def _group(self, device: torch.device, named: Sequence[Named], buckets: Sequence[Bucket]) -> Group:
        """Make the buffers of the parameters on one device; collective."""
        halves = None if self._compression == "none" else torch_halves(self._compression)
        share = 1 / self._communicator.size if self._average else 1.0
        direct = not is_host(device) and self._path_of(device).name == "gpu-aware"
        allreduce = choose(
            self._communicator, buckets, halves, share=share, share_memory=self._share_memory and not direct
        )
        lane_of: LaneOf | None = None
        if direct:

            def lane_of(flat: torch.Tensor, _: NDArray[Any], presence: NDArray[Any]) -> Direct:
                return Direct(self._accelerators[device], self._communicator, share, flat, presence)

        elif not is_host(device):

            def lane_of(flat: torch.Tensor, buffer: NDArray[Any], _: NDArray[Any]) -> Staged:
                return Staged(self._accelerators[device], allreduce, flat, buffer)

        layouts = self._communicator.bcast([layout_of(weight) for _, weight in named])
        fillings = [
            filling_of(allreduce, each, named, layouts, averages=self._average, lane_of=lane_of) for each in buckets
        ]
        return Group(allreduce, fillings)

    def _path_of(self, device: torch.device) -> Path:
        """Return the way of gradients on ``device``, which is chosen once; collective."""
        if device not in self._accelerators:
            self._accelerators[device] = accelerator_of(device)
        if self.path is None:
            compressed = self._compression != "none"
            accelerator = self._accelerators[device]
            self.path = choose_path(self._communicator, accelerator, self._gpu_buffers, compressed=compressed)
        return self.path

    def _watch(self, weight: torch.Tensor) -> None:
        """Have the backward pass call for ``weight``, which may be frozen as yet."""
        if id(weight) in self._watched or not weight.is_floating_point():
            return
        frozen = not weight.requires_grad
        if frozen:
            weight.requires_grad_(True)  # torch only accepts hooks for such weights, but keeps them
        self._tensors[id(weight)] = weight._cdata
        self._watched[id(weight)] = weight, weight.register_post_accumulate_grad_hook(self._gradient_is_there)
        if frozen:
            weight.requires_grad_(False)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # a compiled step calls it as it is
    def _gradient_is_there(self, weight: torch.Tensor) -> None:
        """Go on with the sums; runs during the backward pass, as soon as one parameter's gradient is there."""
        if weight.is_cpu:
            self._go_on(weight)
        elif self._failure is None:
            try:
                self._go_on(weight)
            except Exception as error:  # an exception in a device's thread may end the process
                self._failure = error

    def _go_on(self, weight: torch.Tensor) -> None:
        if self._pass is None or self._pass() is None:
            self._enter()
        if self._passes + 1 < self._accumulate or self._late:
            return
        # Hooks that were registered later have not run for this gradient yet, but have run for the previous one.
        thread = threading.get_ident()
        before, self._ready[thread] = self._ready.get(thread), weight
        if before is not None and id(before) in self._places:
            group, number, position = self._places[id(before)]
            group.take(number, position)
        for each in self._groups:
            each.progress()

    def _enter(self) -> None:
        """Begin a backward pass."""
        self._discard_failed_pass()
        if torch._dynamo.compiled_autograd.in_compiled_autograd_region:
            raise RuntimeError(
                "compiled autograd calls hooks where gradients are not there yet: leave compiled autograd off; "
                "torch.compile of the model, or of a whole step, works"
            )
        self._cleared.clear()
        token = _Pass()
        self._pass = weakref.ref(token)
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._end, token))
        # A user's hook may change any gradient, so all are copied after the last hook has run.
        self._late = any(len(weight._post_accumulate_grad_hooks) > 1 for weight, _ in self._watched.values())
        if self._passes + 1 >= self._accumulate and not self._late:
            for group in self._groups:
                group.take_frozen()

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _end(self, _: _Pass) -> None:
        """Average the gradients; the engine calls this when the backward pass is over."""
        self._pass = None
        self._ready.clear()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._settle(failed=True)
            raise failure
        self._passes += 1
        if self._passes >= self._accumulate:
            self._settle()

    def _due(self, changes: Sequence[Changes]) -> bool:
        """Return True if this rank has gradients that are not averages."""
        if self._passes:
            return True
        replaced = [] if self._average else [name for each in changes for name in each.replaced]
        if replaced:
            raise RuntimeError(
                "gradients were replaced after they were summed over the ranks (average=False): "
                f"{', '.join(replaced)}; change them in place"
            )
        odd = any(each.foreign for each in changes)
        if odd:
            self._refuse_exchanged()
        return odd or any(each.is_foreign() for each in self._sparse) or self._grows()

    def _settle(self, *, failed: bool = False) -> None:
        """Bring all gradients to their averages; collective."""
        self._passes = 0
        with torch.no_grad():
            failures, grows, failure = self._sum(failed)
            self._average_statistics()
            if failure is not None:
                raise failure
            if failures:
                if failed:
                    return
                raise RuntimeError("the backward pass failed on another rank: these gradients are not averages")
            for filling in self._fillings():
                filling.deliver()
            for sparse in self._sparse:
                sparse.average(self._communicator, self._average)
            if grows:
                before = len(self._groups), len(self._sparse)
                self._include(self._unplanned(), compare=True)
                with self._order.operation("new parameters"):
                    for group in self._groups[before[0] :]:
                        group.take_rest()
                        self._complete(group)
                        for filling in group.fillings:
                            filling.deliver()
                for sparse in self._sparse[before[1] :]:
                    sparse.average(self._communicator, self._average)

    def _sum(self, failed: bool) -> tuple[bool, bool, Exception | None]:
        """Sum the gradients, and sum them once more if any has changed meanwhile; collective.

        Returns whether a rank failed, whether a rank has new parameters, and what this rank failed by here.
        """
        failure: Exception | None = None
        for is_last in (False, True):
            self._overflow = None
            if not failed:
                try:
                    for group in self._groups:
                        group.take_rest()
                except (RuntimeError, TypeError) as error:
                    failed, failure = True, error
            with self._order.operation("a backward pass"):
                for group in self._groups:
                    group.fill()
                for group in self._groups:
                    self._complete(group)
                changed = not failed and not is_last and any(filling.changed() for filling in self._fillings())
                failures, grows, again = self._order.largest(int(failed), int(self._grows()), int(changed))
            if failures or not again:
                break
        return bool(failures), bool(grows), failure

    def _complete(self, group: Group) -> None:
        try:
            group.finish(self._order.wait)
        except FloatingPointError as error:
            self._overflow = error  # finish raises it, unless a GradScaler skips this step

    def _discard_failed_pass(self) -> None:
        """Give the other ranks what they wait for, after an exception ended this rank's backward pass."""
        if self._pass is None or self._pass() is not None:
            return
        self._pass = self._failure = None
        self._ready.clear()
        self._settle(failed=True)

    def _average_statistics(self) -> None:
        if self._statistics == "local":
            return
        layers = [module for module in self.model.modules() if isinstance(module, _NormBase)]
        both = [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var) if tensor is not None]
        if not both:
            return
        flat = torch.cat([tensor.reshape(-1).to(both[0].device, torch.float64) for tensor in both]).cpu()
        self._communicator.Allreduce(MPI.IN_PLACE, flat.numpy(), MPI.SUM)
        flat /= self._communicator.size
        flat = flat.to(both[0].device)
        for tensor, mean in zip(both, flat.split([tensor.numel() for tensor in both]), strict=True):
            tensor.copy_(mean.view_as(tensor))


def _checksum(tensors: Sequence[torch.Tensor]) -> int:
    """Return a number that ranks have in common if they changed these tensors alike, such as by clipping."""
    sums = []
    for tensor in tensors:
        # As int64, which is summed at the speed of memory. Sums of int32 take 25 times as long.
        flat = tensor.detach().contiguous().view(-1)
        together = max(8 // flat.element_size(), 1)
        if flat.storage_offset() % together:
            flat = flat.clone()
        even = flat.numel() - flat.numel() % together
        sums.append((flat[:even].view(torch.int64).sum(), flat[even:].view(torch.uint8)))
    return zlib.crc32(repr([(int(total), rest.tolist()) for total, rest in sums]).encode())


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two buffers are equal up to rounding."""
    one = one.detach().cpu()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    one, other = one.double(), other.double()
    near = _FAR * float(other.abs().mean())
    return bool(torch.allclose(one, other, rtol=_FAR, atol=near, equal_nan=True))


def _part(weight: torch.Tensor) -> torch.Tensor:
    """Return some of the elements of ``weight``, in the order of its indices."""
    weight = weight.detach()
    few = _COMPARED_BYTES // weight.element_size()
    return weight if weight.numel() <= few else weight[: max(few * len(weight) // weight.numel(), 1)]


class _Pass:
    """A backward pass; the engine drops it when the pass is over, or has failed."""
