"""Data sources: every rank reads the same global batches in the same order, and takes its replica's share.

A *pass* reads the data once. A global batch is the data of one optimizer update; replica k of r takes the k-th of r
equal, contiguous shares, so that the global micro-batches have the same order as in one process.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hyparflow.errors import DataError
from hyparflow.training.layout import Array, Layout, Samples, class_weights


@dataclass(frozen=True)
class GlobalBatch:
    """A batch that is not yet copied from its arrays: ``samples`` in the order of ``order`` (None: unchanged)."""

    samples: Samples
    order: Array | None = None

    def __len__(self) -> int:
        return len(self.samples) if self.order is None else len(self.order)

    def take(self, array: Array, rows: slice | Array) -> Array:
        """Return some of the batch's rows of one of its arrays."""
        return array[rows if self.order is None else self.order[rows]]

    def digest(self, begun: int = 0, most: int | None = None) -> int:
        """Return a checksum of the batch, combined with the checksum ``begun``.

        ``most``: maximum number of bytes to include, in whole rows, at least one, spread over the batch (None: all).
        """
        rows: slice | Array = slice(None)
        if most is not None and (wanted := max(1, most // self.samples.row_bytes)) < len(self):
            rows = np.linspace(0, len(self) - 1, wanted).astype(np.int64)
        if self.order is not None:
            rows = self.order[rows]
        return self.samples.rows(rows).digest(begun)


class Source(Protocol):
    """Global batches, the same on every rank."""

    @property
    def batch_size(self) -> int:
        """Samples of a batch; the last one of a pass can have fewer."""

    @property
    def example(self) -> Samples:
        """Some samples, for the shapes of targets."""

    @property
    def batches(self) -> int | None:
        """Batches of a pass, including a smaller last one; None if unknown or infinite."""

    def begin(self, number: int, first: int) -> Iterator[GlobalBatch]:
        """Start pass ``number`` from its batch ``first``. Passes are requested in ascending order."""


class Arrays:
    """NumPy arrays, divided into batches and reshuffled in each pass from a seed."""

    def __init__(self, samples: Samples, batch_size: int, shuffle: bool, seed: int) -> None:
        self.samples = samples
        self.batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed

    @property
    def example(self) -> Samples:
        """The first sample."""
        return self.samples.rows(slice(0, 1))

    @property
    def batches(self) -> int | None:
        return -(-len(self.samples) // self.batch_size)

    def begin(self, number: int, first: int) -> Iterator[GlobalBatch]:
        """Start a pass. Its order depends only on the seed and the number of the pass, not on ranks or restarts."""
        count = len(self.samples)
        order = np.random.default_rng((self._seed, number)).permutation(count) if self._shuffle else None
        for begin in range(first * self.batch_size, count, self.batch_size):
            end = min(begin + self.batch_size, count)
            if order is None:
                yield GlobalBatch(self.samples.rows(slice(begin, end)))
            else:
                yield GlobalBatch(self.samples, order[begin:end])


class Batched:
    """Data that is already divided into batches: a tf.data.Dataset, or a generator."""

    def __init__(self, iterate: Callable[[], Iterator[Any]], read: Callable[[Any], Samples], count: int | None) -> None:
        """Start the first pass.

        Args:
            iterate: A function that starts a pass.
            read: A function from an element to its samples.
            count: Elements of a pass, if known.
        """
        self._iterate = iterate
        self._read = read
        self.batches = count
        self._begun = 0
        # The first pass starts at once, to get the size of a batch. A dataset that reshuffles in each pass would have
        # another order in a second "first" pass.
        self._first = iterate()
        try:
            self.example = read(next(self._first))
        except StopIteration:
            raise DataError("the data contain no batch") from None
        self.batch_size = len(self.example)

    def begin(self, number: int, first: int) -> Iterator[GlobalBatch]:
        """Start a pass; earlier batches are read and skipped, and earlier passes are started to advance their seeds.

        A pass cannot be repeated: the next one is returned instead.
        """
        passed = self._next_pass()
        while self._begun <= number:
            passed = self._next_pass()
        for samples in itertools.islice(passed, first, None):
            yield GlobalBatch(samples)

    def _next_pass(self) -> Iterator[Samples]:
        self._begun += 1
        if self._begun == 1:
            return itertools.chain((self.example,), map(self._read, self._first))
        elements = self._iterate()
        peeked = list(itertools.islice(elements, 1))  # an iterator of tf.data draws its seeds with the first element
        return map(self._read, itertools.chain(peeked, elements))


class Indexed:
    """A keras.utils.PyDataset, whose batches are requested by index, in a seeded order if they are shuffled.

    With ``workers`` > 1, as many threads read ahead, at most ``max_queue_size`` batches. ``use_multiprocessing`` also
    uses threads, because a process that has initialised MPI cannot fork safely.
    """

    def __init__(self, dataset: Any, read: Callable[[Any], Samples], shuffle: bool, seed: int) -> None:
        self._dataset = dataset
        self._read = read
        self._shuffle = shuffle
        self._seed = seed
        if self.batches == 0:
            raise DataError("the data contain no batch")
        self.example = read(dataset[0])
        self.batch_size = len(self.example)

    @property
    def batches(self) -> int | None:
        """Batches of a pass, None if the dataset is infinite."""
        found = self._dataset.num_batches
        return None if found is None else int(found)

    def begin(self, number: int, first: int) -> Iterator[GlobalBatch]:
        """Start a pass. The order of the batches depends only on the seed and the number of the pass."""
        self._dataset.on_epoch_begin()
        count = self.batches
        indices: Iterator[int] = itertools.count(first)
        if count is not None:
            order = np.arange(count)
            if self._shuffle:
                order = np.random.default_rng((self._seed, number)).permutation(count)
            indices = map(int, order[first:])
        for element in self._elements(indices):
            yield GlobalBatch(self._read(element))
        self._dataset.on_epoch_end()

    def _elements(self, indices: Iterator[int]) -> Iterator[Any]:
        if self._dataset.workers <= 1:
            yield from map(self._dataset.__getitem__, indices)
            return
        from concurrent.futures import Future, ThreadPoolExecutor

        ahead: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self._dataset.workers) as pool:
            for index in itertools.islice(indices, max(1, self._dataset.max_queue_size)):
                ahead.append(pool.submit(self._dataset.__getitem__, index))
            while ahead:
                element = ahead.popleft().result()
                ahead.extend(pool.submit(self._dataset.__getitem__, index) for index in itertools.islice(indices, 1))
                yield element


def source(
    layout: Layout,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = False,
    class_weight: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Source:
    """Return the source for the data arguments of ``fit``, ``evaluate`` or ``predict``.

    Args:
        layout: The inputs and outputs of the model.
        x: Arrays, or batches of them.
        y: Targets, unless ``x`` has them.
        sample_weight: Weights of the samples, unless ``x`` has them.
        batch_size: Samples of a batch of arrays (default: 32).
        shuffle: Shuffle in each pass.
        class_weight: Class -> weight.
        seed: Seed of the order (default: 0).

    Raises:
        DataError: The data do not fit the model, or arguments do not fit the kind of data.
    """
    from keras.utils import PyDataset

    def weighted(samples: Samples) -> Samples:
        return class_weights(samples, class_weight) if class_weight else samples

    def read(element: Any) -> Samples:
        return weighted(layout.samples(*unpacked(element)))

    if is_batched(x):
        for name, value in (("y", y), ("sample_weight", sample_weight), ("batch_size", batch_size)):
            if value is not None:
                raise DataError(f"{name} must be part of the data if x is a {type(x).__name__}: remove it")
    if isinstance(x, PyDataset):
        return Indexed(x, read, shuffle, seed)
    if _is_dataset(x):
        count = int(x.cardinality())
        return Batched(lambda: iter(x), read, count if count >= 0 else None)
    if isinstance(x, Iterator):
        return Batched(lambda: x, read, None)
    samples = weighted(layout.samples(x, y, sample_weight))
    size = 32 if batch_size is None else batch_size
    if size < 1:
        raise DataError(f"batch_size must be at least 1, not {size}")
    if not len(samples):
        raise DataError("the data contain no sample")
    return Arrays(samples, size, shuffle, seed)


def unpacked(element: Any) -> tuple[Any, ...]:
    """Return x, (x,), (x, y) or (x, y, sample_weight), as datasets yield them, as a tuple."""
    if isinstance(element, list):
        element = tuple(element)
    if not isinstance(element, tuple):
        return (element,)
    if not 1 <= len(element) <= 3:
        raise DataError(f"a batch must be x, (x, y) or (x, y, sample_weight), but this one has {len(element)} parts")
    return element


def split(data: tuple[Any, Any, Any], fraction: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split off the last ``fraction`` of x, y and sample_weight for validation, before any shuffling.

    Raises:
        DataError: They are not arrays, or one of the parts would be empty.
    """
    from keras import tree

    if is_batched(data[0]):
        raise DataError("validation_split requires arrays; with batches, use validation_data")
    arrays = tree.map_structure(lambda each: None if each is None else np.asarray(each), data, none_is_leaf=True)
    count = len(tree.flatten(arrays[0])[0])
    at = int(count * (1.0 - fraction))
    if not 0 < at < count:
        what = f"validation_split={fraction} of {count} samples"
        raise DataError(f"{what} leaves none for training or none for validation")

    def part(rows: slice) -> Any:
        return tree.map_structure(lambda each: None if each is None else each[rows], arrays, none_is_leaf=True)

    return part(slice(0, at)), part(slice(at, None))


def widened(given: Source, size: int, keep: bool) -> Source:
    """Divide arrays into batches of ``size`` for the ranks, unless the results depend on batches (``keep``)."""
    if not keep and isinstance(given, Arrays):
        return Arrays(given.samples, size, shuffle=False, seed=0)
    return given


def is_batched(x: Any) -> bool:
    """Return whether x yields batches instead of being arrays."""
    from keras.utils import PyDataset

    return isinstance(x, PyDataset | Iterator) or _is_dataset(x)


def _is_dataset(x: Any) -> bool:
    import sys

    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(x, tensorflow.data.Dataset)
