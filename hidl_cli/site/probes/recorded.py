"""A machine's answers in a directory, so that somebody else can look at them elsewhere.

What a command printed is in a file named after its words (``scontrol show config`` is ``scontrol-show-config.txt``);
``PROGRAM.txt`` answers all questions to a program that have no file of their own. What the kernel's files hold lies
below ``root/``. ``host.json`` has the host's name, its environment, where its programs are, and the machine itself; in
a directory without one, the programs are those that have files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hidl_cli.documents import read_json, write_json, write_text
from hidl_cli.errors import InvalidInput, Problem, UsageError
from hidl_cli.redaction import redact_variable
from hidl_cli.site.machine import Machine
from hidl_cli.site.probes.anonymous import Anonymous
from hidl_cli.site.probes.host import HostBehind

SCHEMA = "hidl.host/1"
DESCRIPTION = "host.json"
_ROOT = "root"
#: What a recording keeps of the environment: variables that probes and rules look at.
_KEPT = re.compile(
    r"USER|HOME|PATH|LD_PRELOAD|LD_LIBRARY_PATH|LMOD_.*|MODULE.*|LOADEDMODULES|_LMFILES_|SLURM_.*|LSB_.*|LSF_.*|PBS_.*|"
    r"FLUX_.*|PMI.*|MV2_.*|MVP_.*|MPI.*|I_MPI_.*|OMPI_.*|PMIX_.*|PRTE_.*|PAMI_.*|UCX_.*|UCC_.*|FI_.*|PSM2_.*|HCOLL_.*|"
    r"NCCL_.*|RCCL_.*|CUDA_.*|NVIDIA_.*|HIP_.*|ROC.*|HSA_.*|ZE_.*|OMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|TF_.*|TORCH_.*|"
    r"CRAY.*|PE_.*|TACC_.*|NERSC_.*|LMOD|CONDA_.*|PYTHON.*|HIDL_.*"
)


@dataclass
class RecordedHost:
    """The machine whose answers are in ``directory``."""

    directory: Path
    hostname: str = "nowhere"
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    machine: Machine | None = None

    def which(self, program: str) -> str | None:
        """Where a program lay on the PATH."""
        return self.programs.get(PurePosixPath(program).name)

    def ask(self, *command: str, seconds: float = 0, stderr: bool = False) -> str | None:
        """What a command printed; None where it failed, or was not asked."""
        if self.which(command[0]) is None:
            return None
        for name in (file_name(command), file_name(command[:1])):
            file = self.directory / name
            if file.is_file():
                return file.read_text(encoding="utf-8", errors="replace")
        return None

    def read(self, path: str) -> str:
        """The text of a small file of the kernel."""
        file = self.directory / _ROOT / path.lstrip("/")
        return file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        place = self.directory / _ROOT / directory.lstrip("/")
        return tuple(sorted(path.name for path in place.iterdir())) if place.is_dir() else ()


def file_name(command: tuple[str, ...]) -> str:
    """The name of the file with what a command printed."""
    words = " ".join((PurePosixPath(command[0]).name, *command[1:]))
    return re.sub(r"[^A-Za-z0-9._]+", "-", words)[:200] + ".txt"


def load_host(directory: Path) -> RecordedHost:
    """The host of a recording; ``UsageError`` if there is none, ``InvalidInput`` for an invalid ``host.json``."""
    answers = sorted(directory.glob("*.txt"))
    file = directory / DESCRIPTION
    if not directory.is_dir() or not any(each.is_file() for each in directory.iterdir()):
        raise UsageError(
            f"{directory} holds no recorded outputs",
            hint="name the directory that `hidl doctor --collect` wrote, or one with files such as mpiexec-version.txt",
        )
    if not file.is_file():
        programs = {name: f"/usr/bin/{name}" for answer in answers for name in _programs(answer.stem)}
        return RecordedHost(directory, programs=programs)
    try:
        about = read_json(file)
        machine = about.get("machine")
        return RecordedHost(
            directory,
            hostname=_text(about["hostname"]),
            environment=_texts(about.get("environment", {})),
            programs=_texts(about.get("programs", {})),
            failures=tuple(map(_text, about.get("failures", ()))),
            machine=None if machine is None else Machine(**machine),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem(f"{file}: {error}", "an object with hostname, environment, programs and machine")
        raise InvalidInput(f"{file} cannot be read", problems=[problem]) from error


def _programs(stem: str) -> list[str]:
    """The programs that a file may belong to: ``nvidia-smi-query-gpu`` may be of nvidia, nvidia-smi, ..."""
    words = stem.split("-")
    return ["-".join(words[:count]) for count in range(1, len(words) + 1)]


def _texts(value: Any) -> dict[str, str]:
    return {_text(name): _text(each) for name, each in value.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


@dataclass(frozen=True)
class RecordingHost(HostBehind):
    """Asks ``host``, and keeps what it answers."""

    _answers: dict[tuple[str, ...], str] = field(default_factory=dict)
    _files: dict[str, str] = field(default_factory=dict)
    _directories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _programs: dict[str, str] = field(default_factory=dict)

    def which(self, program: str) -> str | None:
        """Where a program lies on the PATH."""
        found = super().which(program)
        if found is not None:
            self._programs[PurePosixPath(program).name] = found
        return found

    def ask(self, *command: str, seconds: float = 10.0, stderr: bool = False) -> str | None:
        """What a command prints."""
        answer = super().ask(*command, seconds=seconds, stderr=stderr)
        if answer is not None:
            self.which(command[0])
            self._answers[command] = answer
        return answer

    def read(self, path: str) -> str:
        """The text of a small file."""
        text = super().read(path)
        if text:
            self._files[path] = text
        return text

    def list(self, directory: str) -> tuple[str, ...]:
        """The names in a directory."""
        names = super().list(directory)
        if names:
            self._directories[directory] = names
        return names

    def write(self, directory: Path, machine: Machine) -> Sequence[str]:
        """Write all that was asked, without names of users, hosts and accounts; return the files' names, sorted.

        ``UsageError`` if the directory holds anything, or cannot be written.
        """
        anonymous = Anonymous.of(self, self._answers)
        clean = anonymous.clean
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise UsageError(f"{directory} is not empty", hint="name a directory that does not exist")
            for command, answer in self._answers.items():
                write_text(directory / file_name(tuple(map(clean, command))), clean(answer))
            root = directory / _ROOT
            for path, text in self._files.items():
                file = root / clean(path).lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                write_text(file, clean(text))
            for path, names in self._directories.items():
                for name in names:
                    place = root / clean(f"{path}/{name}").lstrip("/")
                    if not place.exists():
                        place.mkdir(parents=True)
            kept = {
                name: redact_variable(name, value) for name, value in self.environment.items() if _KEPT.fullmatch(name)
            }
            about = {
                "schema": SCHEMA,
                "hostname": self.hostname,
                "environment": kept,
                "programs": self._programs,
                "failures": list(self.failures),
                "machine": asdict(machine),
            }
            write_json(directory / DESCRIPTION, json.loads(clean(json.dumps(about))))
        except OSError as error:
            raise UsageError(f"cannot write {directory}: {error.strerror}") from error
        return sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file())
