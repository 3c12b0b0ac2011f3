"""Checkpoints of a program that several jobs complete, one after another.

A checkpoint is a directory such as ``step-000000000012``: one file with the state that all ranks share, one file for
each rank's own, and ``manifest.json`` with their sizes and SHA-256. The files are written under another name, and the
directory is renamed when all of them are on disk. A directory of that name is therefore complete unless its file system
failed, which the checksums show.

``owner.json`` names the run that writes to the directory. Each job of the run leaves a token of its own there, and
publishes a checkpoint only while its token is still in place: ranks that survive the loss of a node write no more.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from mpi4py import MPI

from hidl_workloads import stop
from hidl_workloads.metrics import write_json
from hidl_workloads.progress import Progress
from hidl_workloads.refusal import Refused, agree

DIRECTORY = "HIDL_CHECKPOINT"
"""Variable with the directory of the checkpoints; without it, programs save nothing."""

INTERVAL = "HIDL_CHECKPOINT_INTERVAL"
"""Variable with the seconds between two checkpoints."""

KEEP = "HIDL_CHECKPOINT_KEEP"
"""Variable with the number of checkpoints that are kept."""

SCHEMA = "hidl.checkpoint/1"
_OWNER = "owner.json"
_MANIFEST = "manifest.json"
_SHARED = "shared"
_DEFAULT_INTERVAL = 600.0
_DEFAULT_KEEP = 2
_BLOCK = 2**22  # number of bytes read at once
#: The run id of programs started without hidl; they may continue each other.
_NO_RUN = "without hidl"

Writer = Callable[[BinaryIO], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Snapshot:
    """The state of a program between two steps.

    Attributes:
        shared: Writes the state that is equal on all ranks; called on rank 0.
        own: Writes the state of this rank.
        document: Position and results so far, as JSON; rank 0's is kept.
    """

    shared: Writer
    own: Writer
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, and the files in it that this rank reads.

    Attributes:
        step: Number of completed steps.
        ranks: Number of ranks that wrote it.
        shared: File with the shared state.
        own: File with the state of one rank: this one's, or ``rank % ranks``'s at another number of ranks.
        document: The document of the snapshot.
    """

    step: int
    ranks: int
    shared: Path
    own: Path
    document: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run in one directory. All methods are collective and raise ``Refused`` on all ranks."""

    def __init__(
        self,
        communicator: MPI.Comm,
        directory: Path,
        *,
        identity: Mapping[str, Any],
        versions: Mapping[str, Any],
        fixed_ranks: str | None = None,
        is_exact_on_any_ranks: bool = False,
    ) -> None:
        """Take the directory for this run.

        Args:
            communicator: All ranks of the program.
            directory: Directory that all ranks share; it is created.
            identity: Values that a checkpoint must have to be continued, such as the model's size.
            versions: Values that may change, with weights that then are not equal bit by bit, such as a framework's
                version.
            fixed_ranks: Why the state cannot be continued on another number of ranks; None if it can.
            is_exact_on_any_ranks: The results do not depend on the number of ranks, not even in their last bits.

        Raises:
            Refused: Another run owns the directory, it cannot be written, or a variable is invalid.
        """
        self._communicator = communicator
        self._directory = directory
        self._identity, self._versions, self._fixed_ranks = _plain(identity), _plain(versions), fixed_ranks
        self._is_exact_on_any_ranks = is_exact_on_any_ranks
        self._run = os.environ.get("HIDL_RUN_ID") or _NO_RUN
        self._token: str = communicator.bcast(uuid.uuid4().hex if communicator.rank == 0 else None)
        self._skipped: set[str] = set()
        self._interval = _number(INTERVAL, _DEFAULT_INTERVAL, least=0)
        self._keep = int(_number(KEEP, _DEFAULT_KEEP, least=1))
        self._saved_at = time.monotonic()
        self._saved_step: int | None = None
        stop.listen()
        self._on_first(self._claim)
        self._progress = Progress(directory, run=self._run, token=self._token) if communicator.rank == 0 else None

    def newest(self, limit: int) -> Checkpoint | None:
        """Return the newest complete checkpoint of at most ``limit`` steps; report those that are skipped.

        Raises:
            Refused: It belongs to another program or model, or to another number of ranks and cannot be divided.
        """
        for name in self._on_first(lambda: sorted(_names(self._directory), reverse=True)):
            manifest, fault = self._on_first(lambda name=name: self._read_manifest(name, limit))  # type: ignore[misc]
            if fault is None:
                self._on_first(lambda manifest=manifest, name=name: self._require_same(name, manifest))  # type: ignore[misc]
                faults = self._communicator.allgather(self._damage(name, manifest))
                fault = next((each for each in faults if each is not None), None)
            if fault is None:
                if self._progress is not None:
                    self._progress.continue_from(manifest["step"])
                return self._found(name, manifest)
            self._skipped.add(name)
            self._say(f"checkpoint {self._directory / name} was skipped: {fault}")
        if self._progress is not None:
            self._progress.continue_from(0)
        return None

    def after_step(self, step: int, snapshot: Callable[[], Snapshot], *, last: bool = False) -> bool:
        """Save if the interval is over, a stop was requested or the step is the ``last``; return True if to stop.

        ``snapshot`` is called only if a checkpoint is written.
        """
        first = self._communicator.rank == 0
        due = first and time.monotonic() - self._saved_at >= self._interval
        wishes = np.array([stop.is_requested(), due], dtype=np.int8)
        self._communicator.Allreduce(MPI.IN_PLACE, wishes, MPI.MAX)
        stops, is_due = bool(wishes[0]), bool(wishes[1])
        if self._progress is not None:
            self._progress.end_step(step)
        if (stops or is_due or last) and self._saved_step != step:
            saved = self.save(step, snapshot())
            if self._progress is not None:
                self._progress.end_checkpoint(saved=saved)
        return stops and not last

    def save(self, step: int, snapshot: Snapshot) -> bool:
        """Write a checkpoint; return False, with a message, if it could not be written, for example on a full disk.

        Raises:
            Refused: Another job has taken over the directory, or the snapshot of a rank failed.
        """
        name = _name(step)
        beside = self._directory / f".{name}.{self._token[:8]}"
        fault = self._on_first(lambda: self._prepare(beside))
        files: dict[str, dict[str, Any]] = {}
        broken: str | None = None
        if fault is None:
            parts = {_own(self._communicator.rank): snapshot.own}
            if self._communicator.rank == 0:
                parts[_SHARED] = snapshot.shared
            try:
                files = {part: _write(beside / part, writer) for part, writer in parts.items()}
            except OSError as error:
                fault = _because(error)
            except Exception as error:  # the other ranks are waiting for this one
                broken = f"checkpoint {self._directory / name}: {_described(error)}"
        agree(self._communicator, broken)
        every = self._communicator.gather((files, fault))
        fault = self._on_first(lambda: self._publish(step, beside, every or [], snapshot.document))
        self._saved_at = time.monotonic()
        if fault is not None:
            self._say(f"checkpoint {self._directory / name} could not be written: {fault}")
            return False
        self._saved_step = step
        self._skipped.discard(name)
        return True

    def finish(self) -> None:
        """Give the directory free for other runs after the last step."""
        if self._progress is not None:
            self._progress.write()
        self._on_first(self._release)

    def _claim(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / _OWNER
        document = {
            "schema": SCHEMA,
            "run": self._run,
            "token": self._token,
            "host": socket.gethostname(),
            "since": time.time(),
        }
        while True:
            owner = self._owner()
            if owner is None:
                beside = file.with_name(f".{_OWNER}.{self._token}")
                write_json(beside, document)
                try:
                    os.link(beside, file)  # fails if another run was faster, also over NFS
                    break
                except FileExistsError:
                    continue
                finally:
                    beside.unlink()
            if owner["run"] != self._run:
                raise Refused(
                    f"checkpoint directory {self._directory} belongs to run {owner['run']}: use another directory, or "
                    f"remove {file} if that run has ended and will not continue"
                )
            write_json(file, document)
            break
        for left in self._directory.glob(".step-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _owner(self) -> Mapping[str, Any] | None:
        file = self._directory / _OWNER
        try:
            owner = json.loads(file.read_text(encoding="ascii"))
            return {"run": str(owner["run"]), "token": str(owner["token"])}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{file} is damaged: remove it if no other run uses the directory") from error

    def _require_ownership(self) -> None:
        owner = self._owner()
        if owner is None or owner["token"] != self._token:
            by = "no job" if owner is None else f"another job of run {owner['run']}"
            raise Refused(f"checkpoint directory {self._directory} was taken from this job and now belongs to {by}")

    def _release(self) -> None:
        owner = self._owner()
        if owner is not None and owner["token"] == self._token:
            (self._directory / _OWNER).unlink()

    def _read_manifest(self, name: str, limit: int) -> tuple[Mapping[str, Any], str | None]:
        """Return a manifest and why its checkpoint cannot be used."""
        try:
            manifest = json.loads((self._directory / name / _MANIFEST).read_text(encoding="ascii"))
            is_whole = manifest.pop("sha256") == _digest(manifest) and manifest["schema"] == SCHEMA
            if not is_whole or _name(manifest["step"]) != name:
                raise ValueError(name)
        except OSError as error:
            return {}, f"{_MANIFEST}: {_because(error)}"
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}, f"{_MANIFEST} is damaged"
        if manifest["step"] > limit:
            return (
                {},
                f"it belongs to an older training with {manifest['step']} steps, more than the {limit} of this one",
            )
        return manifest, None

    def _require_same(self, name: str, manifest: Mapping[str, Any]) -> None:
        differing = list(_differences(manifest["identity"], self._identity))
        if differing:
            raise Refused(
                f"checkpoint {self._directory / name} cannot be continued, because it belongs to another training: "
                f"{'; '.join(differing)}"
            )
        size = self._communicator.size
        if manifest["ranks"] != size and self._fixed_ranks is not None:
            raise Refused(
                f"checkpoint {self._directory / name} was written by {manifest['ranks']} rank(s) and cannot be "
                f"continued with {size}: {self._fixed_ranks}"
            )

    def _damage(self, name: str, manifest: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the files that this rank reads; None if nothing is."""
        for part in (_SHARED, _own(self._communicator.rank % manifest["ranks"])):
            known = manifest["files"][part]
            try:
                path = self._directory / name / part
                if path.stat().st_size != known["size"]:
                    return f"{part} has {path.stat().st_size} bytes instead of {known['size']}"
                if _checksum(path) != known["sha256"]:
                    return f"the contents of {part} have changed since it was written"
            except OSError as error:
                return f"{part}: {_because(error)}"
        return None

    def _found(self, name: str, manifest: Mapping[str, Any]) -> Checkpoint:
        changes = list(_differences(manifest["versions"], self._versions))
        ranks = manifest["ranks"]
        if ranks != self._communicator.size and not self._is_exact_on_any_ranks:
            changes.append(f"ranks was {ranks}, is {self._communicator.size}")
        if changes:
            self._say(
                f"checkpoint {self._directory / name} is continued, but weights will not be bitwise equal to those of "
                f"an uninterrupted run: {'; '.join(changes)}"
            )
        self._saved_step = manifest["step"]
        return Checkpoint(
            step=manifest["step"],
            ranks=ranks,
            shared=self._directory / name / _SHARED,
            own=self._directory / name / _own(self._communicator.rank % ranks),
            document=manifest["document"],
        )

    def _prepare(self, beside: Path) -> str | None:
        self._require_ownership()
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
        except OSError as error:
            return _because(error)
        return None

    def _publish(
        self, step: int, beside: Path, every: list[tuple[dict[str, Any], str | None]], document: Mapping[str, Any]
    ) -> str | None:
        """Complete the checkpoint on rank 0; return why that was not possible."""
        fault = next((each for _, each in every if each is not None), None)
        try:
            if fault is None:
                manifest: dict[str, Any] = {
                    "schema": SCHEMA,
                    "step": step,
                    "ranks": self._communicator.size,
                    "run": self._run,
                    "written": time.time(),
                    "identity": self._identity,
                    "versions": self._versions,
                    "files": {part: entry for files, _ in every for part, entry in files.items()},
                    "document": _plain(document),
                }
                write_json(beside / _MANIFEST, manifest | {"sha256": _digest(manifest)})
                _sync(beside)
                self._require_ownership()
                final = self._directory / _name(step)
                shutil.rmtree(final, ignore_errors=True)  # a damaged one
                beside.rename(final)
                _sync(self._directory)
        except OSError as error:
            fault = _because(error)
        if fault is not None:
            shutil.rmtree(beside, ignore_errors=True)
            return fault
        self._prune(step)
        return None

    def _prune(self, step: int) -> None:
        """Remove all but the newest checkpoints up to ``step``; those that were skipped do not count."""
        names = sorted((name for name in _names(self._directory) if name <= _name(step)), reverse=True)
        complete = [name for name in names if name not in self._skipped or name == _name(step)]
        oldest = complete[: self._keep][-1]
        for name in names:
            if name < oldest:
                shutil.rmtree(self._directory / name, ignore_errors=True)

    def _on_first(self, act: Callable[[], Result]) -> Result:
        """Call ``act`` on rank 0; return its result, or raise ``Refused`` with its error on all ranks."""
        outcome: tuple[Any, str | None] = (None, None)
        if self._communicator.rank == 0:
            try:
                outcome = act(), None
            except Refused as error:
                outcome = None, str(error)
            except OSError as error:
                outcome = None, f"checkpoint directory {self._directory} cannot be used: {_because(error)}"
            except Exception as error:  # the other ranks are waiting for this one
                outcome = None, f"checkpoint directory {self._directory}: {_described(error)}"
        result, refused = self._communicator.bcast(outcome)
        if refused is not None:
            raise Refused(refused)
        found: Result = result
        return found

    def _say(self, text: str) -> None:
        if self._communicator.rank == 0:
            sys.stderr.write(f"hidl: {text}\n")
            sys.stderr.flush()


class _Hashed(io.RawIOBase):
    """A file that computes the SHA-256 and the size of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0
        self.fault: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except OSError as error:
            self.fault = error
            raise
        self.digest.update(view)
        self.size += len(view)
        return len(view)


def directory_of_checkpoints() -> Path | None:
    """Return the directory in ``$HIDL_CHECKPOINT``; None if programs are to save nothing."""
    value = os.environ.get(DIRECTORY)
    return Path(value) if value else None


def _write(path: Path, writer: Writer) -> dict[str, Any]:
    """Write a file to disk and return its size and checksum; raise ``OSError`` if the disk is full."""
    with path.open("wb") as file:
        hashed = _Hashed(file)
        try:
            writer(hashed)  # type: ignore[arg-type]
        except Exception:
            if hashed.fault is not None:  # frameworks raise an error of their own instead
                raise hashed.fault from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return {"size": hashed.size, "sha256": hashed.digest.hexdigest()}


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _sync(directory: Path) -> None:
    """Write the names in a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(step: int) -> str:
    return f"step-{step:012d}"


def _own(rank: int) -> str:
    return f"rank-{rank:06d}"


def _names(directory: Path) -> Iterator[str]:
    return (path.name for path in directory.glob("step-*") if path.name[len("step-") :].isdecimal())


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as JSON returns it: tuples are lists, and all keys are text."""
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            yield f"{name} was {before.get(name, 'not set')}, is {now.get(name, 'not set')}"


def _because(error: OSError) -> str:
    return error.strerror or str(error)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _number(variable: str, default: float, *, least: float) -> float:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < float("inf"):
        raise Refused(f"{variable} must be a number of at least {least:g}, not {text!r}")
    return value
