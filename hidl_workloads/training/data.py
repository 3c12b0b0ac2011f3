"""Data sets of archives for the loop of trainings, and batches that are read while the ranks compute."""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hidl_workloads import archives
from hidl_workloads.arguments import declaration
from hidl_workloads.doctor import data as input_rules
from hidl_workloads.doctor import preflight
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import Training
from hidl_workloads.refusal import agree
from hidl_workloads.training.model import Batch, DataSet
from hidl_workloads.training.order import Order

#: Mean and standard deviation of ImageNet's colours, from 0 to 1.
_MEAN, _DEVIATION = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)
_SMALLEST_CROP = 0.5  # of the height or width
_MOST_READERS = int(declaration(Training, "readers").max or 1)
_MOST_BYTES = 2**30  # of batches that are read ahead, unless one is larger


class _Files:
    """The shards of a data set, and the entries of all of them, in the same order at any number of ranks."""

    def __init__(
        self, communicator: MPI.Comm, path: Path, index: Callable[[Sequence[Path], Sequence[int]], NDArray[Any]]
    ) -> None:
        """Let each rank read the entries of its share of the shards; collective."""
        shards = _find_shards(communicator, path)
        fault, mine = None, None
        try:
            mine = index(shards, range(communicator.rank, len(shards), communicator.size))
        except (OSError, ValueError) as error:
            fault = f"data cannot be read: {error}"
        agree(communicator, fault)
        entries = np.concatenate(communicator.allgather(mine))
        self.entries = entries[np.lexsort((entries["offset"], entries["shard"]))]
        self._shards, self._reader = shards, archives.ShardReader(shards)

    def digest(self) -> str:
        """Return the SHA-256 of all entries."""
        digest = hashlib.sha256()
        for name in self.entries.dtype.names or ():
            digest.update(self.entries[name].tobytes())
        return digest.hexdigest()

    def read(self, entry: Any, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the shard of an entry."""
        return self._reader.read(int(entry["shard"]), offset, size)

    @contextmanager
    def name_errors(self, entry: Any, offset: int) -> Iterator[None]:
        """Name the archive and the sample in errors of this block."""
        try:
            yield
        except Exception as error:  # of the file system, NumPy or Pillow, which has many kinds
            name = archives.name_sample(self._shards[int(entry["shard"])], offset)
            raise ValueError(f"{name}: {error}") from error


def _find_shards(communicator: MPI.Comm, path: Path) -> list[Path]:
    """Return the shards of a data set, after a comparison with those of rank 0: entries have their numbers; collective.

    Raises:
        Refused: On all ranks, if they have different shards, or one of them has none.
    """
    fault, shards, own = None, [], []
    try:
        shards = archives.find_shards(path)
        own = [(each.name, each.stat().st_size) for each in shards]
    except (OSError, ValueError) as error:
        fault = f"data cannot be read: {error}"
    agree(communicator, fault)
    first = communicator.bcast(own)
    if own != first:
        name, _ = min(set(own) ^ set(first))
        host = MPI.Get_processor_name()
        fault = f"data in {path} on {host} differ from those of rank 0: {name} is missing or has another size"
    agree(communicator, fault)
    return shards


class ImageData(DataSet):
    """Images of archives.

    Of each image, a random square of at least half of its height or width is scaled, and mirrored in half of the cases;
    both depend on the seed, the epoch and the number of the image, and not on the rank.
    """

    def __init__(self, communicator: MPI.Comm, path: Path, *, side: int, classes: int, seed: int) -> None:
        """Read where the images are; collective. Raise ``Refused`` on all ranks if the data cannot be used."""
        self._files = _Files(communicator, path, archives.index_images)
        self._side, self._seed = side, seed
        labels = self._files.entries["label"]
        fault = None if len(labels) else f"no images in {path}"
        if len(labels) and labels.max() >= classes:
            fault = f"{path} has classes from {labels.min()} to {labels.max()}, the network 0 to {classes - 1}"
        try:
            archives.require_decoder(np.unique(self._files.entries["kind"]).tolist())
        except ValueError as error:
            fault = str(error)
        agree(communicator, fault)

    def __len__(self) -> int:
        return len(self._files.entries)

    def digest(self) -> str:
        return self._files.digest()

    def read(self, samples: Sequence[tuple[int, int]]) -> Batch:
        images = np.empty((len(samples), 3, self._side, self._side), np.float32)
        for image, (epoch, number) in zip(images, samples, strict=True):
            entry = self._files.entries[number]
            offset = int(entry["offset"])
            with self._files.name_errors(entry, offset):
                data = self._files.read(entry, offset, int(entry["size"]))
                pixels = archives.decode_image(data, str(entry["kind"]))
                part = self._crop(pixels, np.random.default_rng((self._seed, epoch, number)))
            image[:] = ((part / np.float32(255) - _MEAN) / _DEVIATION).transpose(2, 0, 1)
        labels = self._files.entries["label"][[number for _, number in samples]]
        return Batch(images, labels.astype(np.int64))

    def _crop(self, pixels: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
        height, width, _ = pixels.shape
        edge = max(1, int(min(height, width) * random.uniform(_SMALLEST_CROP, 1)))
        top, left = random.integers(height - edge + 1), random.integers(width - edge + 1)
        places = ((np.arange(self._side) + 0.5) * edge / self._side).astype(np.intp)
        columns = places[::-1] if random.random() < 0.5 else places
        found: NDArray[np.uint8] = pixels[top + places[:, None], left + columns]
        return found


class TokenData(DataSet):
    """Sequences of arrays of tokens. The tokens behind the last whole sequence of an array are left out."""

    def __init__(self, communicator: MPI.Comm, path: Path, *, context: int, vocabulary: int) -> None:
        """Read where the arrays are; collective. Raise ``Refused`` on all ranks if the data cannot be used."""
        self._files = _Files(communicator, path, archives.index_tokens)
        self._context, self._vocabulary = context, vocabulary
        counts = np.maximum(self._files.entries["size"] - 1, 0) // context
        self._ends = np.cumsum(counts)
        fault = f"no array in {path} has {context + 1} tokens, which context={context} requires"
        agree(communicator, None if counts.sum() else fault)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def digest(self) -> str:
        return self._files.digest()

    def read(self, samples: Sequence[tuple[int, int]]) -> Batch:
        tokens = np.stack([self._sequence(number) for _, number in samples])
        return Batch(np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:]))

    def _sequence(self, number: int) -> NDArray[np.int64]:
        array = int(np.searchsorted(self._ends, number, side="right"))
        place = number - (int(self._ends[array - 1]) if array else 0)
        entry = self._files.entries[array]
        kind = np.dtype(str(entry["kind"]))
        first = int(entry["offset"]) + place * self._context * kind.itemsize
        with self._files.name_errors(entry, first):
            data = self._files.read(entry, first, (self._context + 1) * kind.itemsize)
            tokens = np.frombuffer(data, kind).astype(np.int64)
            if tokens.min() < 0 or tokens.max() >= self._vocabulary:
                raise ValueError(f"tokens from {tokens.min()} to {tokens.max()} exceed vocabulary={self._vocabulary}")
        return tokens


class BatchReader:
    """Reads the batches of this rank ahead in threads, while the ranks train.

    Attributes:
        position: Number of samples that all ranks have taken; those that are read ahead do not count.
    """

    def __init__(self, data: DataSet, communicator: MPI.Comm, parameters: Training) -> None:
        self._data, self._communicator = data, communicator
        self._batch, self._readers, self._seed = parameters.batch, parameters.readers, parameters.seed
        self._threads = ThreadPoolExecutor(parameters.readers, thread_name_prefix="reader")
        self._order: Order | None = None
        self._pending: deque[Future[tuple[Batch, float]]] = deque()
        self._waits: list[float] = []
        self._reads: list[float] = []
        self.position = 0

    def take(self) -> Batch:
        """Return the batch of the next step."""
        began = time.perf_counter()
        self._read_ahead(1)
        batch, seconds = self._pending.popleft().result()
        # Each reader has a batch to read while one more is ready.
        fitting = _MOST_BYTES // (batch.inputs.nbytes + batch.targets.nbytes)
        self._read_ahead(max(1, min(self._readers + 1, fitting)))
        self.position += self._batch * self._communicator.size
        self._waits.append(time.perf_counter() - began)
        self._reads.append(seconds)
        return batch

    def _read_ahead(self, count: int) -> None:
        """Start to read batches until ``count`` of them are ready or being read."""
        if self._order is None:
            self._order = Order(len(self._data), self._seed, self.position)
        while len(self._pending) < count:
            taken = self._order.take_samples(self._communicator.rank, self._communicator.size, self._batch)
            self._pending.append(self._threads.submit(self._read, taken))

    def _read(self, samples: Sequence[tuple[int, int]]) -> tuple[Batch, float]:
        began = time.perf_counter()
        return self._data.read(samples), time.perf_counter() - began

    def metrics(self, seconds: Sequence[float], timed: int, ranks: float) -> list[Metric]:
        """Return the time of an epoch, and the share of waiting in the timed steps of this job, if any; collective.

        A warning is printed and recorded if the ranks wait for their data.

        Args:
            seconds: Seconds of the timed steps of all jobs.
            timed: Number of these steps that were in this job, the last ones.
            ranks: Number of ranks of these steps.
        """
        steps = len(self._data) / (self._batch * ranks)
        epoch = Metric("epoch_time", steps * float(np.mean(seconds)), "s", [steps * each for each in seconds])
        return [epoch, self._measure_waiting(sum(seconds[-timed:]), timed)] if timed else [epoch]

    def _measure_waiting(self, seconds: float, timed: int) -> Metric:
        """Return the share of the last ``timed`` steps, which took ``seconds``, in which ranks waited; collective."""
        waits = self._communicator.allgather(sum(self._waits[-timed:]) / seconds)
        reads = self._communicator.allgather(float(np.mean(self._reads)))
        places = self._communicator.allgather((MPI.Get_processor_name(), tuple(sorted(os.sched_getaffinity(0)))))
        if self._communicator.rank == 0:
            slowest = int(np.argmax(waits))
            cores = len(places[slowest][1]) // places.count(places[slowest])
            facts = input_rules.Input(waits[slowest], reads[slowest], self._readers, min(cores, _MOST_READERS))
            preflight.tell(input_rules.RULES.findings(facts))
        return Metric("input_wait", max(waits), "share", waits)

    def close(self) -> None:
        """End the threads, and drop what was read ahead."""
        self._threads.shutdown(cancel_futures=True)
