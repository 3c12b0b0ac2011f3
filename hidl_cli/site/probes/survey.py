"""Run all probes on a machine, or on a recording of one, and combine their results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.documents import read_json, write_json, write_text
from hidl_cli.errors import InvalidInput, Problem, SchedulerUnreachable, UsageError
from hidl_cli.redaction import redact, redact_variable
from hidl_cli.site.machine import Machine, machine
from hidl_cli.site.probes import flux, lsf, pbs, slurm, software
from hidl_cli.site.probes import host as cluster
from hidl_cli.site.probes import host as fabric
from hidl_cli.site.probes import host as gpus
from hidl_cli.site.probes import host as lscpu
from hidl_cli.site.probes.facts import Fact, Hardware, InstalledPackage, ProbedLibrary, SchedulerFacts
from hidl_cli.site.probes.host import Cards, Host, HostBehind

_HOME = "/home/user1"
_HOST = "host"
_TELLS_ACCOUNTS = "sacctmgr"
_DOMAIN = "example.org"
#: Names that do not identify a person.
_NOBODY = frozenset(
    ("", "root", "nobody", "slurm", "localhost", "ALL", "NO", "NONE", "N/A", "(null)", "all", "users", "default")
)
# Slurm's account and group lists, users who own a node or changed its state, and LSF's and PBS's user lists.
_ACCOUNTS = re.compile(r"\b(?:Allow|Deny)Accounts=(\S+)")
_GROUPS = re.compile(r"\bAllowGroups=(\S+)")
_USERS = re.compile(
    r"\[([A-Za-z_][\w.-]*)@\d{4}-\d\d-\d\d|\bOwner=(\w\S*)|^USERS:\s+(.+)$|\bacl_users *= *(\S+)", re.MULTILINE
)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
# Not all groups of four numbers are addresses, because some libraries have version numbers of this form.
_IPV4 = re.compile(r"(?<=[=(@])(?!127\.|0\.)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_HARDWARE = re.compile(
    r"\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,}\b|(?<=GUID: )0x[0-9a-fA-F]+|\b[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}\b"
)


@dataclass(frozen=True)
class Anonymizer:
    """Replaces names with neutral words; ``words`` lists longer names first."""

    words: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, host: Host, answers: Mapping[tuple[str, ...], str]) -> Anonymizer:
        """Find the names to replace in the output of commands that were run on ``host``."""
        text = "\n".join(answers.values())
        accounts = [
            line.strip()
            for command, output in answers.items()
            if command[0] == _TELLS_ACCOUNTS
            for line in output.splitlines()
        ]
        user, home = host.environment.get("USER", ""), host.environment.get("HOME", "")
        short, *labels = host.hostname.split(".")
        own = short if short[-1:].isdigit() else _HOST  # numbered hosts do not identify a person
        found = {short: own} if short not in _NOBODY else {}
        if labels:
            found[host.hostname] = f"{own}.{_DOMAIN}"
        found |= {".".join(labels[first:]): _DOMAIN for first in range(len(labels) - 1)}
        found |= {home: _HOME} if home.count("/") > 1 else {}
        found |= _numbered("user", [user, *_listed(_USERS, text)])
        found |= _numbered("account", [*_listed(_ACCOUNTS, text), *accounts])
        found |= _numbered("group", _listed(_GROUPS, text))
        return cls(tuple(sorted(found.items(), key=lambda pair: -len(pair[0]))))

    def clean(self, text: str) -> str:
        """Remove names, addresses and secrets from ``text``."""
        text = redact(text)
        for name, word in self.words:
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", word, text)
        text = _MAIL.sub(f"user@{_DOMAIN}", text)
        text = _IPV4.sub("192.0.2.1", text)
        return _HARDWARE.sub(lambda found: re.sub(r"[0-9a-fA-F](?!x)", "0", found[0]), text)


def _listed(pattern: re.Pattern[str], text: str) -> list[str]:
    lists = (part for found in pattern.finditer(text) for part in found.groups() if part)
    return [name for each in lists for name in re.split(r"[,\s]+", each)]


def _numbered(kind: str, names: Iterable[str]) -> dict[str, str]:
    known = dict.fromkeys(name for name in names if name not in _NOBODY)
    return {name: f"{kind}{number}" for number, name in enumerate(known, start=1)}


# Record the probes' output in a directory, and use the directory in place of the machine.


SCHEMA = "hidl.host/1"
DESCRIPTION = "host.json"
_ROOT = "root"
#: Environment variables to record, because probes and rules use them.
_KEPT = re.compile(
    r"USER|HOME|PATH|LD_PRELOAD|LD_LIBRARY_PATH|LMOD_.*|MODULE.*|LOADEDMODULES|_LMFILES_|SLURM_.*|LSB_.*|LSF_.*|PBS_.*|"
    r"FLUX_.*|PMI.*|MV2_.*|MVP_.*|MPI.*|I_MPI_.*|OMPI_.*|PMIX_.*|PRTE_.*|PAMI_.*|UCX_.*|UCC_.*|FI_.*|PSM2_.*|HCOLL_.*|"
    r"NCCL_.*|RCCL_.*|CUDA_.*|NVIDIA_.*|HIP_.*|ROC.*|HSA_.*|ZE_.*|OMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|TF_.*|TORCH_.*|"
    r"CRAY.*|PE_.*|TACC_.*|NERSC_.*|LMOD|CONDA_.*|PYTHON.*|HIDL_.*"
)


@dataclass
class RecordedHost:
    """A machine recorded in ``directory``."""

    directory: Path
    hostname: str = "nowhere"
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    machine: Machine | None = None

    def which(self, program: str) -> str | None:
        return self.programs.get(PurePosixPath(program).name)

    def ask(self, *command: str, seconds: float = 0, stderr: bool = False) -> str | None:
        if self.which(command[0]) is None:
            return None
        for name in (file_name(command), file_name(command[:1])):
            file = self.directory / name
            if file.is_file():
                return file.read_text(encoding="utf-8", errors="replace")
        return None

    def read(self, path: str) -> str:
        file = self.directory / _ROOT / path.lstrip("/")
        return file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""

    def list(self, directory: str) -> tuple[str, ...]:
        place = self.directory / _ROOT / directory.lstrip("/")
        return tuple(sorted(path.name for path in place.iterdir())) if place.is_dir() else ()


def file_name(command: tuple[str, ...]) -> str:
    """Return the name of the file for a command's output."""
    words = " ".join((PurePosixPath(command[0]).name, *command[1:]))
    return re.sub(r"[^A-Za-z0-9._]+", "-", words)[:200] + ".txt"


def load_host(directory: Path) -> RecordedHost:
    """Load a recording. Raises ``UsageError`` if there is none, and ``InvalidInput`` if ``host.json`` is invalid."""
    outputs = sorted(directory.glob("*.txt"))
    file = directory / DESCRIPTION
    if not directory.is_dir() or not any(each.is_file() for each in directory.iterdir()):
        raise UsageError(
            f"{directory} contains no recorded outputs",
            hint="give the directory written by `hidl doctor --collect`, or one with files such as mpiexec-version.txt",
        )
    if not file.is_file():
        programs = {name: f"/usr/bin/{name}" for output in outputs for name in _programs(output.stem)}
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
    """Return the programs that a file may belong to, such as nvidia and nvidia-smi for ``nvidia-smi-query-gpu``."""
    words = stem.split("-")
    return ["-".join(words[:count]) for count in range(1, len(words) + 1)]


def _texts(value: Any) -> dict[str, str]:
    return {_text(name): _text(each) for name, each in value.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


@dataclass(frozen=True)
class RecordingHost(HostBehind):
    """A host that records the result of every call."""

    _answers: dict[tuple[str, ...], str] = field(default_factory=dict)
    _files: dict[str, str] = field(default_factory=dict)
    _directories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _programs: dict[str, str] = field(default_factory=dict)

    def which(self, program: str) -> str | None:
        found = super().which(program)
        if found is not None:
            self._programs[PurePosixPath(program).name] = found
        return found

    def ask(self, *command: str, seconds: float = 10.0, stderr: bool = False) -> str | None:
        answer = super().ask(*command, seconds=seconds, stderr=stderr)
        if answer is not None:
            self.which(command[0])
            self._answers[command] = answer
        return answer

    def read(self, path: str) -> str:
        text = super().read(path)
        if text:
            self._files[path] = text
        return text

    def list(self, directory: str) -> tuple[str, ...]:
        names = super().list(directory)
        if names:
            self._directories[directory] = names
        return names

    def write(self, directory: Path, machine: Machine) -> Sequence[str]:
        """Write the recording without user, host and account names, and return its sorted file names.

        Raises ``UsageError`` if the directory is not empty or cannot be written.
        """
        anonymizer = Anonymizer.of(self, self._answers)
        clean = anonymizer.clean
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise UsageError(f"{directory} is not empty", hint="choose a directory that does not exist")
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


#: Schedulers by their keys in ``SYSTEMS``. The first one whose programs are found describes the machine.
_PROBES = {"slurm": slurm.probe, "lsf": lsf.probe, "pbs": pbs.probe, "flux": flux.probe}

_UNKNOWN = Machine(arch="", cpu=None, sockets=None, cores=1, threads_per_core=None, memory_gib=None)


@dataclass(frozen=True)
class SurveyResult:
    """Everything that was found on a machine.

    Attributes:
        hostname: The host's name, which is empty if the facts come from manually saved output.
        launchers: Launchers by name, with their paths or the files that mention them.
        read: Saved files, with the facts from each.
        described: Names of the nodes that ``machine`` describes.
        with_cards: Names of the nodes that ``cards`` describes.
        unknown_nodes: The nodes' hardware if the scheduler lists no nodes.
    """

    hostname: str
    machine: Machine
    cards: Cards | None = None
    batch: SchedulerFacts | None = None
    launchers: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[ProbedLibrary, ...] = ()
    interconnect: Fact | None = None
    remarks: tuple[str, ...] = ()
    installed: tuple[InstalledPackage, ...] = ()
    read: tuple[str, ...] = ()
    described: frozenset[str] = frozenset()
    with_cards: frozenset[str] = frozenset()
    unknown_nodes: Hardware | None = None


def survey(host: Host, this: Machine | None = None, *, alone: bool = False) -> SurveyResult:
    """Run all probes, but skip the schedulers if ``alone`` is set.

    ``this`` is the machine, if already known. Raises ``SchedulerUnreachable`` if a scheduler's programs exist but do
    not respond.
    """
    batch = None if alone else next(filter(None, (probe(host) for probe in _PROBES.values())), None)
    if batch and not batch.sources:
        program = SYSTEMS[batch.scheduler].shows
        raise SchedulerUnreachable(
            "; ".join(host.failures) or f"`{program}` did not respond",
            hint=f"run `{program}` and try again, or use --alone to draft a site for this machine without a scheduler",
        )
    return SurveyResult(
        hostname=host.hostname,
        machine=_this_machine(host, this),
        cards=gpus.probe_gpus(host),
        batch=batch,
        launchers=software.launchers(host),
        libraries=software.libraries(host),
        interconnect=fabric.probe_fabric(host),
        remarks=tuple(_other_schedulers(host, batch)),
    )


def survey_recorded(host: RecordedHost, *, alone: bool = False) -> SurveyResult:
    """Run all probes on a recorded machine; see ``survey`` for ``alone`` and errors.

    Also raises ``InvalidInput`` if neither a scheduler nor the machine itself was recorded.
    """
    found = survey(host, host.machine or _UNKNOWN, alone=alone)
    if found.batch is None and host.machine is None:
        raise InvalidInput(
            f"{host.directory} does not describe a machine",
            hint="record it with `hidl doctor --collect`, or add the output of a scheduler: scontrol-show-config.txt, "
            "scontrol-oneliner-show-node.txt, scontrol-oneliner-show-partition.txt; lsid.txt, bqueues-l.txt, ...",
        )
    return found


def _other_schedulers(host: Host, batch: SchedulerFacts | None) -> Iterator[str]:
    """Yield remarks about schedulers that are not part of the draft."""
    drafted = {SYSTEMS[name].title for name in _PROBES}
    for title, program in cluster.schedulers(host).items():
        if title not in drafted:
            yield f"{title} ({program}) is installed too, but hidl cannot draft a site from it"
        elif batch and title != SYSTEMS[batch.scheduler].title:
            yield f"{title} ({program}) is installed too; this draft is for {SYSTEMS[batch.scheduler].title}"


def _this_machine(host: Host, found: Machine | None = None) -> Machine:
    """Return this machine's hardware. On ARM, ``lscpu`` prints the CPU model, because the kernel does not report it."""
    found = found or machine()
    return found if found.cpu else replace(found, cpu=lscpu.fields(host.ask(*lscpu.JSON) or "").get(lscpu.MODEL))
