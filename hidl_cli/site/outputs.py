"""Parse saved program output into facts for a site file."""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import InvalidInput, Mark, Problem, UsageError
from hidl_cli.mpi import RUNTIMES, TRAITS, tell
from hidl_cli.site.draft import NodeKind, folded, kinds
from hidl_cli.site.machine import Machine
from hidl_cli.site.probes import flux, lsf, pbs, slurm, software
from hidl_cli.site.probes import host as fabric
from hidl_cli.site.probes import host as gpus
from hidl_cli.site.probes import host as lscpu
from hidl_cli.site.probes.facts import (
    Fact,
    Hardware,
    InstalledPackage,
    ProbedLibrary,
    ProbedNode,
    Processor,
    Queue,
    SchedulerFacts,
    heading,
    is_row,
    listed,
    row,
)
from hidl_cli.site.probes.host import Cards
from hidl_cli.site.probes.survey import DESCRIPTION, RecordedHost, SurveyResult, file_name, load_host, survey_recorded


class UnexpectedOutput(ValueError):
    """Raised for a line that the program would not print. Lines start at 1, and 0 stands for the whole text."""

    def __init__(self, line: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}: expected {expected}, found {found}")
        self.line, self.expected, self.found = line, expected, found


@dataclass(frozen=True)
class ParsedOutput:
    """The facts found in a program's output.

    ``words`` is a summary, and ``launchers`` lists the launchers that exist according to the output.
    """

    words: str
    batch: SchedulerFacts | None = None
    processor: Processor | None = None
    cards: Cards | None = None
    interconnect: Fact | None = None
    libraries: tuple[ProbedLibrary, ...] = ()
    launchers: tuple[str, ...] = ()
    installed: tuple[InstalledPackage, ...] = ()
    srun_mpi: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def has_facts(self) -> bool:
        """True if any of the facts can be used in a site file."""
        return any(
            (self.batch, self.processor, self.cards, self.interconnect, self.libraries, self.launchers, self.installed)
        )


def table(text: str, titles: Sequence[str], numbers: Sequence[str] = ()) -> list[tuple[int, Mapping[str, str]]]:
    """Return the rows below these titles, with their line numbers.

    Args:
        text: The text that contains the table.
        titles: Titles that must be in the header line.
        numbers: Columns that must contain whole numbers.

    Raises ``UnexpectedOutput`` for the first row that does not match.
    """
    lines = text.splitlines()
    at = heading(lines, *titles)
    if at is None:
        raise UnexpectedOutput(0, f"a line with the column headings {' '.join(titles)}", "none")
    found: list[tuple[int, Mapping[str, str]]] = []
    for number in range(at + 1, len(lines)):
        if not is_row(lines[number]):
            continue
        cells = row(lines[at], lines[number])
        if cells is None:
            raise UnexpectedOutput(number + 1, f"a row below {' '.join(lines[at].split())}", quoted(lines[number]))
        for title in numbers:
            if not cells.get(title, "0").isdecimal():
                raise UnexpectedOutput(number + 1, f"a number in the column {title}", quoted(cells[title]))
        found.append((number + 1, cells))
    return found


def quoted(text: str) -> str:
    """Return the beginning of a text in quotes, for use in messages."""
    words = " ".join(text.split())
    return f"`{words[:60]}…`" if len(words) > 60 else f"`{words}`" if words else "nothing"


def count(number: int, word: str) -> str:
    """Format a count: ``1 node``, ``2 nodes``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


# Merge the output of several scheduler commands, and find contradictions between them.


T = TypeVar("T")
_WIDTH = 40  # maximum length of node names in a message


@dataclass(frozen=True)
class SchedulerOutput:
    """A scheduler description, and the files that it comes from."""

    files: str
    batch: SchedulerFacts


@dataclass
class _Differences:
    """Facts on which two files disagree. Nodes with the same pair of values are reported together."""

    found: dict[tuple[str, str, str, str, str], list[str]] = field(default_factory=dict)

    def either(self, name: str, fact: str, ours: tuple[str, T | None], theirs: tuple[str, T | None]) -> T | None:
        """Return the known value. If both are known and differ, record the difference and return ours."""
        (our_file, one), (their_file, other) = ours, theirs
        if one is None or other is None or one == other:
            return other if one is None else one
        self.found.setdefault((fact, str(one), our_file, str(other), their_file), []).append(name)
        return one

    def messages(self) -> tuple[str, ...]:
        """Describe all differences."""
        return tuple(
            f"{fact} of {folded(names, _WIDTH)}: {one} ({file}), but {other} ({their})"
            for (fact, one, file, other, their), names in self.found.items()
        )


def merged(sources: Sequence[SchedulerOutput]) -> tuple[SchedulerFacts, tuple[str, ...]]:
    """Merge descriptions of a scheduler; return the result and all contradictions.

    If sources contradict each other, the first one takes precedence.
    """
    first, *rest = sources
    total, files, differences = first.batch, first.files, _Differences()
    for source in rest:
        batch, name = source.batch, "the scheduler"
        context = differences, files, source.files
        total = replace(
            total,
            version=differences.either(name, "version", (files, total.version), (source.files, batch.version)),
            cluster=differences.either(name, "cluster", (files, total.cluster), (source.files, batch.cluster)),
            nodes=_by_name(total.nodes, batch.nodes, partial(_node, *context)),
            queues=_by_name(total.queues, batch.queues, partial(_queue, *context)),
            policies=total.policies or batch.policies,
            srun_mpi=total.srun_mpi or batch.srun_mpi,
            remarks=tuple(dict.fromkeys((*total.remarks, *batch.remarks))),
        )
        files = f"{files}, {source.files}"
    return total, differences.messages()


N = TypeVar("N", ProbedNode, Queue)


def _by_name(ours: Iterable[N], theirs: Iterable[N], together: Callable[[N, N], N]) -> tuple[N, ...]:
    found = {one.name: one for one in ours}
    for other in theirs:
        found[other.name] = together(found[other.name], other) if other.name in found else other
    return tuple(found.values())


def _node(differences: _Differences, file: str, their: str, one: ProbedNode, other: ProbedNode) -> ProbedNode:
    values: dict[str, Any] = {
        each.name: differences.either(
            one.name,
            each.name,
            (file, getattr(one.hardware, each.name)),
            (their, getattr(other.hardware, each.name)),
        )
        for each in fields(Hardware)
    }
    return replace(
        one,
        hardware=Hardware(**values),
        features=one.features | other.features,
        queues=tuple(dict.fromkeys((*one.queues, *other.queues))),
        arch=differences.either(one.name, "arch", (file, one.arch), (their, other.arch)),
    )


def _queue(differences: _Differences, file: str, their: str, one: Queue, other: Queue) -> Queue:
    wall = differences.either(one.name, "max_wall", (file, _seconds(one.max_wall)), (their, _seconds(other.max_wall)))
    return replace(
        one,
        is_default=one.is_default or other.is_default,
        min_nodes=max(one.min_nodes, other.min_nodes),
        max_nodes=differences.either(one.name, "max_nodes", (file, one.max_nodes), (their, other.max_nodes)),
        max_wall=one.max_wall if wall == _seconds(one.max_wall) else other.max_wall,
        restricted=one.restricted or other.restricted,
        left_out=one.left_out or other.left_out,
        is_listed=one.is_listed or other.is_listed,
        remarks=tuple(dict.fromkeys((*one.remarks, *other.remarks))),
    )


def _seconds(wall: str | None) -> int | None:
    if wall is None:
        return None
    days, _, clock = wall.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


# Facts about one host: its processor, network and software.


_PREFIX = re.compile(r"--prefix=(/[^\s'\"]{1,500})(?![^\s'\"])")
_VERSION_OF_OPEN_MPI = re.compile(r"^ompi:version:full:", re.MULTILINE)  # ompi_info --parsable
_DIRECTORY = re.compile(r"[ \t]*(?:-{3,}[ \t]*)?(/[^\s:]{0,300}?)[ \t]*(?:-{3,}|:)[ \t]*$")
_LEGEND = re.compile(
    r"^\s*(?:Where:|Key:|Use \"module|No Modulefiles?|No module\(s\)|If the avail list)", re.IGNORECASE
)
_MARK = re.compile(r"[(<][^()<>\s]*[)>]")
_WORD = re.compile(r"[A-Za-z][\w.+/@-]{0,120}(?:[(<][^()<>\s]*[)>])?", re.ASCII)
_UCX = re.compile(
    r"^#?[ \t]*(?:Library version|UCT version|UCX version)[:=][ \t]*(\d[\w.]{0,60})(?![\w.])", re.MULTILINE
)
_UCX_PREFIX = re.compile(r"--prefix=(\S{1,500})(?!\S)")
_NUMA_CPUS = re.compile(r"^node (\d{1,4}) cpus:([ \t\d]*)$", re.MULTILINE)
_SYSTEM = re.compile(r"/(?:usr|opt|apps?|sw|software|cm|cvmfs|nfs|shared?)\b")


def processor(text: str) -> ParsedOutput:
    """Parse ``lscpu``, as text or JSON. Raises ``UnexpectedOutput`` if the number of processors is missing."""
    fields = lscpu.fields(text)
    processors = _number(fields.get("CPU(s)"))
    if processors is None:
        raise UnexpectedOutput(0, "a number after `CPU(s):`", "none")
    sockets, threads = _number(fields.get("Socket(s)")), _number(fields.get("Thread(s) per core"))
    per_socket, per_cluster = _number(fields.get("Core(s) per socket")), _number(fields.get("Core(s) per cluster"))
    clusters = _number(fields.get("Cluster(s)"))
    cores = sockets * per_socket if sockets and per_socket else None
    if cores is None and clusters and per_cluster:
        cores = clusters * per_cluster
    remarks = []
    if cores and threads and cores * threads != processors:
        remarks.append(f"{cores} cores of {count(threads, 'thread')} do not add up to {processors} CPUs")
        cores = None
    numa = _number(fields.get("NUMA node(s)"))
    model, arch = fields.get(lscpu.MODEL), fields.get("Architecture")
    if fields.get("Hypervisor vendor"):
        remarks.append("a virtual machine, which may have been assigned only some cores")
    words = [model or "a processor", f"{cores} cores" if cores else f"{processors} CPUs"]
    if numa:
        words.append(count(numa, "NUMA node"))
    return ParsedOutput(
        ", ".join(words),
        processor=Processor(model, arch, sockets, cores, threads, processors),
        remarks=tuple(remarks),
    )


def numa(text: str) -> ParsedOutput:
    """Parse ``numactl --hardware``, in which CPUs may be cores or threads.

    Raises ``UnexpectedOutput`` if the output lists no CPUs.
    """
    cpus = [len(found[2].split()) for found in _NUMA_CPUS.finditer(text)]
    if not sum(cpus):
        raise UnexpectedOutput(0, "a line `node 0 cpus: ...`", "none")
    words = f"{count(sum(cpus), 'CPU')}, {count(len([one for one in cpus if one]), 'NUMA node')} with CPUs"
    return ParsedOutput(words, processor=Processor(None, None, None, None, None, sum(cpus)))


def network(program: str) -> Callable[[str], ParsedOutput]:
    """Return the parser for ``ibstat`` or ``ibv_devinfo``."""

    def read(text: str) -> ParsedOutput:
        fact = fabric.described(program, text)
        if fact is None:
            return ParsedOutput("no active port")
        return ParsedOutput(fact, interconnect=Fact(fact, program))

    return read


def library(program: str) -> Callable[[str], ParsedOutput]:
    """Return the parser for a program in ``TELLERS``."""

    def read(text: str) -> ParsedOutput:
        found = tell(program, _VERSION_OF_OPEN_MPI.sub("Open MPI: ", text))
        if found is None:
            return ParsedOutput("an unknown MPI library")
        family, version = found
        prefix = _PREFIX.search(text) or re.search(
            r"^(?:[ \t]*Prefix|path:prefix):[ \t]*(/\S{1,500})(?!\S)", text, re.MULTILINE
        )
        place = prefix[1] if prefix else None
        words = f"{TRAITS[family].printed} {version}"
        return ParsedOutput(
            words, libraries=(ProbedLibrary(f"{family}-{version}", family, version, program, prefix=place),)
        )

    return read


def launcher(text: str) -> ParsedOutput:
    """Parse ``mpiexec --version`` or ``mpirun --version``."""
    abi = next((abi for abi, pattern in RUNTIMES.items() if re.search(pattern, text)), None)
    version = re.search(r"(?:Version:[ \t]{0,80}|\) )(\d\S{0,60})", text)
    number = f" {version[1]}" if version else ""
    if abi == "openmpi":
        return ParsedOutput(f"mpirun of Open MPI{number}", launchers=("mpirun",))
    return ParsedOutput(f"mpiexec of MPICH or a derivative{number}", launchers=("mpiexec",))


def mpi_types(text: str) -> ParsedOutput:
    """Parse ``srun --mpi=list``."""
    types = slurm.types(text)
    if not types:
        raise UnexpectedOutput(0, "the names of plugins", "none")
    return ParsedOutput(f"`srun --mpi=` accepts {', '.join(types)}", launchers=("srun",), srun_mpi=types)


def modules(text: str) -> ParsedOutput:
    """Find MPI libraries in the output of ``module avail``, with or without ``--terse``."""
    sections: list[tuple[str, list[software.AvailableModule]]] = []
    for line in text.splitlines():
        if _LEGEND.match(line):
            if sections:
                break
            continue
        if directory := _DIRECTORY.match(line):
            sections.append((directory[1], []))
        elif line.strip().startswith("---") and line.strip().endswith("---"):
            sections.append(("", []))
        elif sections:
            words: list[str] = []
            for word in line.split():
                if words and _MARK.fullmatch(word):
                    words[-1] += word
                elif _WORD.fullmatch(word):
                    words.append(word)
            sections[-1][1].extend(filter(None, map(software.read_name, words)))
    everything = [module for _, its in sections for module in its]
    if not everything:
        raise UnexpectedOutput(0, "the name of a directory, followed by the names of its modules", "none")
    loaded = {module.name for module in everything if module.is_loaded}
    listed = [
        software.AvailableModule(module.name, module.is_default, module.is_loaded, _needed(directory, loaded))
        for directory, its in sections
        for module in its
    ]
    libraries = tuple(software.of_modules(listed))
    words_ = f"{count(len(listed), 'module')}, {len(libraries)} of MPI libraries"
    loaded_ = f"; loaded: {', '.join(sorted(loaded)[:10])}" if loaded else ""
    return ParsedOutput(words_ + loaded_, libraries=libraries)


def _needed(directory: str, loaded: set[str]) -> tuple[str, ...]:
    """Return the module that made a directory available.

    For example, loading gcc/8.3.1 adds ``.../Compiler/gcc/8.3.1``.
    """
    opened = "/".join(directory.rstrip("/").split("/")[-2:])
    return (opened,) if opened in loaded else ()


def ucx(text: str) -> ParsedOutput:
    """Parse ``ucx_info -v``. A user's own build is not considered site software."""
    found = _UCX.search(text)
    if found is None:
        raise UnexpectedOutput(0, "a version of UCX", "none")
    prefix = _UCX_PREFIX.search(text)
    place = prefix[1] if prefix else None
    words = f"UCX {found[1]}" + (f" in {place}" if place else "")
    if place is None or not _SYSTEM.match(place):
        return ParsedOutput(words + ", possibly not the site's; ignored")
    return ParsedOutput(words, installed=(InstalledPackage("ucx", found[1], place, "ucx_info -v"),))


def _number(text: str | None) -> int | None:
    return int(text) or None if text and text.isdecimal() and len(text) < 8 else None


# Scheduler output in formats that users often have at hand, but that the probes do not request.


_WALL = re.compile(r"(?:([0-9]{1,5})-(?=[0-9]+:[0-9]+:))?(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{2})")
_MARKS = "*~#!%$@^+-"  # suffixes of Slurm states
_NO_LIMIT = ("infinite", "UNLIMITED", "n/a")
_ALWAYS_THERE = ("AVAIL", "TIMELIMIT", "NODES", "STATE")
_STATES_OF_PARTITIONS = {
    "up": "",
    "down": "jobs wait, and none start",
    "drain": "no new jobs are accepted",
    "inact": "no new jobs are accepted, and none start",
}
_PBS_HEAD = re.compile(r"^\s*Queue:\s*(\S+)\s*$")
_ATTRIBUTE = re.compile(r"^\s+([A-Za-z][\w.]*)\s*=\s?(.*)$")
_NAME = re.compile(r"^\s*([A-Za-z0-9][\w.-]*(?:\[\d+\])?)\s*$")
_PAIR = re.compile(r"(\S+)/(\S+)")
_ROWS_OF_PBS = re.compile(r"^\s*-{4,}[ -]*$")
_CUT = re.compile(r"[0-9]+:[0-9:]*")
_CUT_WALL = re.compile(r"[0-9]{1,5}-[0-9:]{0,7}|(?:[0-9]{1,4}:){1,2}[0-9]?|inf[init]{0,4}|UNLIM[ITE]{0,3}")


def sinfo(text: str) -> SchedulerFacts:
    """Parse ``sinfo``, with or without ``-l``, ``-N`` or ``-s``. Raises ``UnexpectedOutput`` for an invalid row."""
    printed = table(_without_reasons(text), ["PARTITION"])
    rows = [(number, {_title(key): cell for key, cell in cells.items()}) for number, cells in printed]
    width = next((len(key) for _, cells in printed for key in cells if _title(key) == "TIMELIMIT" != key), None)
    titles = {title for _, cells in rows for title in cells}
    nodes: dict[str, ProbedNode] = {}
    queues: dict[str, Queue] = {}
    for number, cells in rows:
        word = cells.get("PARTITION", "")
        name, limit, available = word.rstrip("*"), cells.get("TIMELIMIT", ""), cells.get("AVAIL", "up")
        if missing := [title for title in _ALWAYS_THERE if title in titles and title not in cells]:
            raise UnexpectedOutput(number, f"a value in the column {missing[0]}", quoted(" ".join(cells.values())))
        if not name or available not in _STATES_OF_PARTITIONS:
            row_ = quoted(" ".join(cells.values()))
            raise UnexpectedOutput(number, "a partition and `up` or `down` in each row", row_)
        wall = _wall(limit) if len(limit) != width else None
        remarks = [f"AVAIL {available}: {_STATES_OF_PARTITIONS[available]}"] if available != "up" else []
        if "TIMELIMIT" in cells and wall is None and limit not in _NO_LIMIT:
            if not _CUT_WALL.fullmatch(limit) and len(limit) != width:
                raise UnexpectedOutput(number, "a time in the column TIMELIMIT", quoted(limit))
            remarks.append(f"TIMELIMIT {quoted(limit)} is truncated; `scontrol show partition` prints it in full")
        if cells.get("ROOT") == "yes":
            remarks.append("only root can submit jobs")
        queues.setdefault(name, Queue(name, word.endswith("*"), max_wall=wall, remarks=tuple(remarks)))
        hosts = listed(cells.get("NODELIST", ""))
        total = cells.get("NODES", cells.get("NODES(A/I/O/T)", "").rpartition("/")[2])
        if total.isdecimal() and "NODELIST" in cells and "..." not in cells["NODELIST"] and str(len(hosts)) != total:
            raise UnexpectedOutput(number, f"{quoted(total)} nodes in NODELIST", str(len(hosts)))
        for host in hosts:
            known = nodes.get(host)
            its = known.queues if known else ()
            nodes[host] = ProbedNode(host, _hardware(cells), queues=tuple(dict.fromkeys((*its, name))))
    states = Counter(cells["STATE"] for _, cells in rows if cells.get("STATE", "").rstrip(_MARKS) in ("down", "drain"))
    remarks = ["some nodes are down or drained, but they are counted, too"] if states else []
    return SchedulerFacts("slurm", nodes=tuple(nodes.values()), queues=tuple(queues.values()), remarks=tuple(remarks))


def _title(word: str) -> str:
    """Return the full version of a truncated column title (``TIMELI``)."""
    whole = [title for title in ("TIMELIMIT", "NODELIST", "STATE", "AVAIL") if title.startswith(word)]
    return whole[0] if len(whole) == 1 and len(word) >= 3 else word


def _without_reasons(text: str) -> str:
    """Remove extra words from the last column if it is REASON, which may contain several words."""
    lines = text.splitlines()
    at = heading(lines, "PARTITION")
    titles = lines[at].split() if at is not None else []
    if not titles or titles[-1] != "REASON":
        return text
    return "\n".join(
        " ".join(line.split()[: len(titles)]) if len(line.split()) > len(titles) else line for line in lines
    )


def _hardware(cells: Mapping[str, str]) -> Hardware:
    """Return the hardware in a row of ``sinfo -Nl``. A number with a suffix varies between nodes and is ignored."""
    shape = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4}):([0-9]{1,3})", cells.get("S:C:T", ""))
    memory, processors = cells.get("MEMORY", ""), cells.get("CPUS", "")
    return Hardware(
        sockets=int(shape[1]) or None if shape else None,
        cores=int(shape[1]) * int(shape[2]) or None if shape else None,
        threads_per_core=int(shape[3]) or None if shape else None,
        memory_mib=int(memory) if re.fullmatch(r"[0-9]{2,10}", memory) else None,
        processors=int(processors) or None if processors.isdecimal() and len(processors) < 8 and not shape else None,
    )


def _wall(text: str) -> str | None:
    """Convert a Slurm time, in which ``30:00`` means 30 minutes."""
    found = _WALL.fullmatch(text)
    if found is None:
        return None
    clock = f"{int(found[2] or 0):02}:{int(found[3]):02}:{found[4]}"
    return f"{found[1]}-{clock}" if found[1] else clock


def bqueues(text: str) -> SchedulerFacts:
    """Parse ``bqueues`` without options. Raises ``UnexpectedOutput`` for an invalid row."""
    found = []
    for number, cells in table(text, ["QUEUE_NAME", "STATUS"], ["NJOBS", "PEND", "RUN"]):
        if "QUEUE_NAME" not in cells or "STATUS" not in cells:
            raise UnexpectedOutput(number, "a queue and its status in each row", quoted(" ".join(cells.values())))
        remarks = [f"STATUS {cells['STATUS']}"] if cells["STATUS"] != "Open:Active" else []
        if cells.get("MAX", "-").isdecimal():
            remarks.append(f"MAX {cells['MAX']}: limit on job slots")
        found.append(Queue(cells["QUEUE_NAME"], remarks=tuple(remarks)))
    return SchedulerFacts("lsf", queues=tuple(found))


def gpus_of_lsf(text: str) -> SchedulerFacts:
    """Parse ``bhosts -gpu`` or ``lshosts -gpu``, in which only a host's first row contains its name.

    Raises ``UnexpectedOutput`` for a row that lacks a number or a model.
    """
    found: dict[str, list[str]] = {}
    host = ""
    lines = text.splitlines()
    at = heading(lines, "HOST_NAME")
    for number, line in enumerate(lines[at + 1 :] if at is not None else [], start=(at or 0) + 2):
        words = line.split()
        if not words:
            continue
        if not line[0].isspace():
            host, *words = words
        if not host or len(words) < 2 or not words[0].isdecimal():
            raise UnexpectedOutput(number, "a host, and the number and model of a GPU", quoted(line.strip()))
        found.setdefault(host, []).append(words[1])
    if not found:
        raise UnexpectedOutput(0, "a row for each GPU", "none")
    nodes = [
        ProbedNode(name, Hardware(gpus=len(models), gpu_model=", ".join(dict.fromkeys(models))))
        for name, models in found.items()
    ]
    return SchedulerFacts("lsf", nodes=tuple(nodes), remarks=("hosts without GPUs are not listed",))


def pbs_queues(text: str) -> Mapping[str, Any]:
    """Convert ``qstat -Q -f`` output to the document that ``qstat -Q -f -F json`` prints.

    Raises ``UnexpectedOutput`` for a line that cannot be part of such output.
    """
    return {"Queue": dict(_blocks(text, _PBS_HEAD))}


def pbs_server(text: str) -> Mapping[str, Any]:
    """Convert ``qstat -B -f`` output to the document that ``qstat -B -f -F json`` prints."""
    servers = dict(_blocks(text, re.compile(r"^\s*Server:\s*(\S+)\s*$")))
    version = next((each["pbs_version"] for each in servers.values() if "pbs_version" in each), None)
    return {"Server": servers, "pbs_version": version}


def pbs_nodes(text: str) -> Mapping[str, Any]:
    """Convert ``pbsnodes -a`` output from PBS or Torque to the document that ``pbsnodes -a -F json`` prints."""
    nodes = dict(_blocks(text, _NAME))
    for node in nodes.values():
        status = dict(part.split("=", 1) for part in str(node.pop("status", "")).split(",") if "=" in part)
        if "np" in node:  # only Torque nodes have it
            memory = {"mem": status["physmem"]} if "physmem" in status else {}
            cards = {"ngpus": node["gpus"]} if "gpus" in node else {}
            node["resources_available"] = {"ncpus": node["np"], **memory, **cards}
    return {"nodes": nodes}


def _blocks(text: str, head: re.Pattern[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Split the text into blocks, each with attributes below a name.

    A line that is indented more deeply than an attribute continues the previous line.
    """
    name, about, last = "", dict[str, Any](), ""
    attribute_indent = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if found := head.match(line):
            if name:
                yield name, _nested(about)
            name, about, last = found[1], {}, ""
        elif not line.strip():
            continue
        elif not name:
            raise UnexpectedOutput(number, "the name of a node, queue or server", quoted(line))
        else:
            indent = len(line.expandtabs()) - len(line.expandtabs().lstrip())
            attribute = _ATTRIBUTE.match(line)
            if attribute and not (last and indent > attribute_indent):
                last, attribute_indent = attribute[1], indent
                about[last] = attribute[2]
            elif last and indent > 0:
                about[last] += line.strip()
            else:
                raise UnexpectedOutput(number, "an attribute and its value", quoted(line))
    if name:
        yield name, _nested(about)


def _nested(about: Mapping[str, str]) -> dict[str, Any]:
    """Nest dotted attributes: ``resources_max.walltime`` becomes ``walltime`` in ``resources_max``."""
    found: dict[str, Any] = {}
    for key, value in about.items():
        group, dot, name = key.partition(".")
        if dot and isinstance(found.setdefault(group, {}), dict):
            found[group][name] = value.strip()
        elif not dot:
            found.setdefault(key, value.strip())
    return found


def pbs_node_table(text: str) -> Mapping[str, Any]:
    """Convert ``pbsnodes -aSj`` output (with ``free/total``) to the document that ``pbsnodes -a -F json`` prints.

    Raises ``UnexpectedOutput`` for an invalid row.
    """
    nodes: dict[str, Any] = {}
    for number, words in _pbs_rows(text, "vnode", "state", "njobs"):
        pairs = [found for word in words[5:9] if (found := _PAIR.fullmatch(word))]
        if len(pairs) != 4:
            raise UnexpectedOutput(number, "mem, ncpus, nmics and ngpus as free/total", quoted(" ".join(words)))
        total = [pair[2] for pair in pairs]
        if not re.fullmatch(r"[0-9]+[kmgtp]?b", total[0]) or not all(one.isdecimal() for one in total[1:]):
            raise UnexpectedOutput(
                number, "a memory size after the first /, and numbers after the others", quoted(" ".join(words[5:9]))
            )
        resources = {"mem": total[0], "ncpus": total[1], "ngpus": total[3]}
        nodes[words[0]] = {"state": words[1], "resources_available": resources}
    return {"nodes": nodes}


def pbs_queue_table(text: str) -> Mapping[str, Any]:
    """Convert ``qstat -q`` output to the document that ``qstat -Q -f -F json`` prints, without truncated times.

    Raises ``UnexpectedOutput`` for an invalid row.
    """
    queues: dict[str, Any] = {}
    for number, words in _pbs_rows(text, "Queue", "Memory", "Walltime"):
        if len(words) < 5:  # totals at the end
            continue
        if len(words) != 10 or words[8] not in "ED" or words[9] not in "RS":
            expected = "a queue, its limits, numbers of jobs, and a state such as `E R`"
            raise UnexpectedOutput(number, expected, quoted(" ".join(words)))
        wall, nodes = words[3], words[4]
        if wall != "--" and not _CUT.fullmatch(wall):
            raise UnexpectedOutput(number, "a time in the column Walltime", quoted(wall))
        limits = {} if wall == "--" else {"walltime": wall}
        limits |= {"nodect": nodes} if nodes.isdecimal() else {}
        queues[words[0]] = {
            "queue_type": "Execution",
            "enabled": str(words[8] == "E"),
            "started": str(words[9] == "R"),
            "resources_max": limits,
        }
    return {"Queue": queues}


def _pbs_rows(text: str, *titles: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the words in each row below these titles, with the line number.

    Raises ``UnexpectedOutput`` if there are no such titles.
    """
    lines = text.splitlines()
    at = heading(lines, *titles)
    if at is None:
        raise UnexpectedOutput(0, f"a line with the column headings {', '.join(titles[:-1])} and {titles[-1]}", "none")
    for number, line in enumerate(lines[at + 1 :], start=at + 2):
        if line.strip() and not _ROWS_OF_PBS.match(line):
            yield number, line.split()


def document(text: str) -> Mapping[str, Any]:
    """Parse a JSON object printed by a PBS command. Raises ``UnexpectedOutput`` if it is anything else."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnexpectedOutput(error.lineno, "JSON", f"{error.msg} in column {error.colno}") from None
    except (ValueError, RecursionError):
        raise UnexpectedOutput(0, "JSON", "a number with too many digits, or too many nested values") from None
    if not isinstance(found, dict):
        raise UnexpectedOutput(1, "a JSON object", quoted(text))
    return found


def rows_fit(text: str, *titles: str, numbers: tuple[str, ...] = ()) -> str:
    """Return the text unchanged. Raises ``UnexpectedOutput`` if a row below these titles does not match them."""
    table(text, titles, numbers)
    return text


def states(nodes: Mapping[str, Any]) -> str:
    """Count the nodes in a PBS document by state: ``2 offline, 1 free``."""
    found = Counter(str(node.get("state", "?")) for node in nodes.values() if isinstance(node, Mapping))
    return ", ".join(f"{number} {state}" for state, number in found.most_common(6))


# The GPUs of a single host, in the formats that vendor tools print for users.


_LISTED = re.compile(r"^GPU (\d+): (\S.*?) \(UUID:", re.MULTILINE)
_SLICE = re.compile(r"^[ \t]+MIG (\S{1,40})[ \t]+Device[ \t]+\d+:", re.MULTILINE)
_BUS = re.compile(r"\b(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\b")
_OF_MEMORY = re.compile(r"/\s*(\d{1,8})MiB")
_QUERIED = re.compile(r"^GPU [0-9A-Fa-f:.]{7,20}[ \t]*$", re.MULTILINE)
_NAME_OF_CARDS = re.compile(r"^[ \t]+Product Name[ \t]*: (\S.{0,200})$", re.MULTILINE)
_TOTAL = re.compile(r"^[ \t]+FB Memory Usage[ \t]*\n[ \t]+Total[ \t]*: (\d{1,8}) MiB", re.MULTILINE)
_MIG_ON = re.compile(r"^[ \t]+MIG Mode[ \t]*\n[ \t]+Current[ \t]*: Enabled", re.MULTILINE)
_DRIVER = re.compile(r"(?:Driver Version|Driver version)[ \t]{0,40}:[ \t]{0,40}(\d[\w.]*)")
_ROW_OF_ROCM = re.compile(r"^[ \t]*(\d{1,3})[ \t]+\S.*%[ \t]*$", re.MULTILINE)
_FIELD_OF_ROCM = re.compile(r"^GPU\[(\d{1,4})\][ \t]*:[ \t]*([^:\n]{1,60}):[ \t]*(\S.{0,300})$", re.MULTILINE)
_DEVICE = re.compile(r"^\|[ \t]*(\d{1,3})[ \t]*\|", re.MULTILINE)
_DEVICE_NAME = re.compile(r"Device Name:[ \t]{0,40}(\S[^|\n]{0,200})", re.MULTILINE)
_MEMORY_OF_INTEL = re.compile(r"Memory Physical Size:[ \t]{0,40}(\d{1,8})(?:\.\d+)? MiB")


def nvidia_list(text: str) -> ParsedOutput:
    """Parse ``nvidia-smi -L``, which lists MIG slices below the GPUs."""
    found = list(_LISTED.finditer(text))
    names = [each[2] for each in found]
    remarks = []
    for each, after in zip(found, [*found[1:], None], strict=True):
        slices = Counter(_SLICE.findall(text, each.end(), after.start() if after else len(text)))
        if slices:
            kinds = ", ".join(f"{number} x {name}" for name, number in slices.items())
            remarks.append(f"GPU {each[1]} is divided into MIG slices: {kinds}")
    return _gpus(_cards(names, [], "nvidia-smi"), remarks)


def nvidia_table(text: str) -> ParsedOutput:
    """Parse ``nvidia-smi`` without options, which truncates long names."""
    names, sizes, remarks = [], [], []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        cells = line.split("|")
        words = cells[1].split() if len(cells) > 3 else []
        if len(words) < 2 or not words[0].isdecimal() or not _BUS.search(cells[2]):
            continue
        name = " ".join(words[1:-1] if words[-1] in ("On", "Off", "N/A") else words[1:])
        if name.endswith("..."):
            remarks.append(f"`{name}` is truncated; `nvidia-smi -L` prints the full name")
        names.append(name.removesuffix("...").strip())
        size = _OF_MEMORY.search(lines[number + 1]) if number + 1 < len(lines) else None
        sizes += [int(size[1]) / 1024] if size else []
    if not names:
        raise UnexpectedOutput(0, "a row for each GPU", "none")
    if "MIG devices" in text and "No MIG devices" not in text:
        remarks.append("some GPUs are divided into MIG slices")
    if "rocesses:" not in text:
        remarks.append("the list of processes is missing, so there may be more GPUs")
    return _gpus(_cards(names, sizes, "nvidia-smi"), [*dict.fromkeys(remarks), *_driver(text)])


def nvidia_query(text: str) -> ParsedOutput:
    """Parse ``nvidia-smi -q``."""
    blocks = _QUERIED.split(text)[1:]
    names = [found[1].strip() for block in blocks if (found := _NAME_OF_CARDS.search(block))]
    if len(names) < len(blocks):
        end = f"the end of the file after {count(len(names), 'name')}"
        raise UnexpectedOutput(text.count("\n") + 1, "a `Product Name` for each GPU", end)
    sizes = [int(found[1]) / 1024 for block in blocks if (found := _TOTAL.search(block))]
    remarks = ["some GPUs are divided into MIG slices"] if _MIG_ON.search(text) else []
    return _gpus(_cards(names, sizes, "nvidia-smi"), [*remarks, *_driver(text)])


def queried(read: Callable[[str], Cards | None]) -> Callable[[str], ParsedOutput]:
    """Return a parser for the format that the probes request."""

    def parse(text: str) -> ParsedOutput:
        cards = read(text)
        if cards is None:
            raise UnexpectedOutput(0, "one entry for each GPU", quoted(text))
        return _gpus(cards, [])

    return parse


def rocm_table(text: str) -> ParsedOutput:
    """Parse ``rocm-smi`` without options, which does not print the model."""
    found = _ROW_OF_ROCM.findall(text)
    if not found:
        raise UnexpectedOutput(0, "a row for each GPU", "none")
    return _gpus(Cards(len(found), None, None, None, "rocm-smi"), [])


def rocm_product(text: str) -> ParsedOutput:
    """Parse ``rocm-smi --showproductname`` and similar commands, which print one value per line."""
    cards: dict[str, dict[str, str]] = {}
    for found in _FIELD_OF_ROCM.finditer(text):
        cards.setdefault(found[1], {})[found[2].strip()] = found[3].strip()
    return _gpus(gpus.of_amd(list(cards.values())), [])


def rocm_csv(text: str) -> ParsedOutput:
    """Parse ``rocm-smi --csv``, which prints one card per line."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("device,"))
    head, *rest = csv.reader(io.StringIO("\n".join(lines[start:])))
    cards = []
    for number, cells in enumerate(rest, start=start + 2):
        if not cells or not re.fullmatch(r"card\d+", cells[0]):
            continue
        if len(cells) != len(head):
            raise UnexpectedOutput(number, f"{len(head)} values, as in the first line", str(len(cells)))
        cards.append(dict(zip(head, cells, strict=True)))
    if not cards:
        raise UnexpectedOutput(0, "a line for each card", "none")
    return _gpus(gpus.of_amd(cards), [])


def intel_table(text: str) -> ParsedOutput:
    """Parse ``xpu-smi discovery``, which prints several lines per GPU."""
    names = [found[1].strip() for found in _DEVICE_NAME.finditer(text)]
    rows = len(_DEVICE.findall(text))
    if rows != len(names):
        expected = f"a `Device Name` for each of {rows} devices"
        raise UnexpectedOutput(text.count("\n") + 1, expected, f"{len(names)}")
    sizes = [int(found[1]) / 1024 for found in _MEMORY_OF_INTEL.finditer(text)]
    return _gpus(_cards(names, sizes, "xpu-smi"), [])


def _cards(names: list[str], sizes: list[float], source: str) -> Cards:
    models = list(dict.fromkeys(names))
    arch = gpus.architecture(models[0]) if len(models) == 1 else None
    memory = round(sizes[0], 1) if len(sizes) == len(names) and len(set(sizes)) == 1 else None
    return Cards(len(names), ", ".join(models) or None, arch, memory, source)


def _gpus(cards: Cards, remarks: list[str]) -> ParsedOutput:
    words = f"{count(cards.count, 'GPU')}: {cards.model or 'model unknown'}"
    return ParsedOutput(words, cards=cards, remarks=tuple(remarks))


def _driver(text: str) -> list[str]:
    found = _DRIVER.search(text)
    return [f"driver {found[1]}"] if found else []


# The kinds of output that hidl can read, how to recognize them, and how to parse them.


@dataclass(frozen=True)
class Output:
    """A kind of output that hidl can read, recognized by its text.

    Output that describes a host is parsed by ``read``. Other output describes a scheduler: ``batch`` returns a complete
    description, or ``convert`` returns one part of it, named ``part``. All three functions raise ``UnexpectedOutput``.

    Attributes:
        title: The command as it is commonly written.
        looks_like: Pattern that matches this kind of output, but no earlier one in the list.
        command: The command, as run by the probes.
    """

    title: str
    looks_like: re.Pattern[str]
    read: Callable[[str], ParsedOutput] | None = None
    scheduler: str | None = None
    part: str | None = None
    convert: Callable[[str], Any] = str
    batch: Callable[[str], SchedulerFacts] | None = None
    command: tuple[str, ...] = ()


#: Functions that describe a scheduler from saved outputs. Each argument is one kind of output (``Output.part``).
DESCRIBE: Mapping[str, Callable[..., SchedulerFacts]] = {
    "slurm": slurm.describe,
    "lsf": lsf.describe,
    "pbs": pbs.describe,
    "flux": flux.describe,
}


#: A line printed by ``nvidia-smi --query-gpu=name,compute_cap,memory.total``.
_CARD = r"[^,\n]{3,80}, (?:\d{1,3}\.\d|\[N/A\]), (?:\d{1,9}|\[N/A\])"
_SAMPLE, _LINE = 100_000, 4000  # maximum numbers of characters to examine: in a file, and in a line


def _lines(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _json(*keys: str) -> re.Pattern[str]:
    """Return a pattern for a JSON object or array that contains these keys near its beginning."""
    return re.compile(r"\A\s*[\[{]" + "".join(rf"(?=[\s\S]{{0,4000}}\"{key}\")" for key in keys))


def _config(text: str) -> str:
    _require(text, r"^ClusterName\s*= \S", "a line `ClusterName = ...`")
    return text


def _nodes(text: str) -> str:
    return _assignments(text, "NodeName")


def _partitions(text: str) -> str:
    return _assignments(text, "PartitionName")


def _assignments(text: str, first: str) -> str:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and "=" not in line:
            raise UnexpectedOutput(number, f"`{first}=...` or another field (`KEY=VALUE`)", f"`{line.strip()[:60]}`")
    return text


def _require(text: str, pattern: str, what: str) -> None:
    if not re.search(pattern, text, re.MULTILINE):
        raise UnexpectedOutput(0, what, "none")


def _resources(text: str) -> str:
    return rows_fit(text, "STATE", "NNODES", "NODELIST", numbers=("NNODES", "NCORES", "NGPUS"))


def _queues_of_flux(text: str) -> str:
    return rows_fit(text, "QUEUE", "NNODES")


def _hosts_of_lsf(text: str) -> str:
    return rows_fit(text, "HOST_NAME", "STATUS", "MAX")


#: The order matters because later patterns are less specific.
OUTPUTS: Sequence[Output] = (
    # schedulers
    Output(
        "scontrol show config",
        _lines(r"^(?:Configuration data as of|SLURM_VERSION[ \t]+= |SlurmctldHost\[0\][ \t]+= )"),
        scheduler="slurm",
        part="config",
        convert=_config,
        command=slurm.CONFIG,
    ),
    Output(
        "scontrol show node",
        _lines(r"^NodeName=\S+ "),
        scheduler="slurm",
        part="nodes",
        convert=_nodes,
        command=slurm.NODES,
    ),
    Output(
        "scontrol show partition",
        _lines(r"^PartitionName=\S+"),
        scheduler="slurm",
        part="partitions",
        convert=_partitions,
        command=slurm.PARTITIONS,
    ),
    Output(
        "sinfo",
        _lines(r"^(?=.*\bPARTITION\b)(?=.*\b(?:AVAIL|STATE|NODELIST|TIMELIMIT)\b)[A-Z(): /_]+$"),
        scheduler="slurm",
        batch=sinfo,
    ),
    Output("srun --mpi=list", _lines(r"MPI plugin types are"), mpi_types, command=slurm.MPI),
    Output("lsid", _lines(r"^My cluster name is \S"), scheduler="lsf", part="identity", command=lsf.IDENTITY),
    Output("bqueues -l", _lines(r"^QUEUE:[ \t]*\S+[ \t]*$"), scheduler="lsf", part="queues", command=lsf.QUEUES),
    Output("bqueues", _lines(r"^QUEUE_NAME[ \t]+PRIO[ \t]+STATUS\b"), scheduler="lsf", batch=bqueues),
    Output(
        "bhosts",
        _lines(r"^HOST_NAME[ \t]+STATUS[ \t]+JL/U\b"),
        scheduler="lsf",
        part="running",
        convert=_hosts_of_lsf,
        command=lsf.RUNNING,
    ),
    Output(
        "bhosts -gpu",
        _lines(r"^HOST_NAME[ \t]+(?:GPU_)?ID[ \t]+MODEL\b"),
        scheduler="lsf",
        batch=gpus_of_lsf,
    ),
    Output(
        "lshosts -gpu",
        _lines(r"^HOST_NAME[ \t]+gpu_id[ \t]+gpu_model\b"),
        scheduler="lsf",
        batch=gpus_of_lsf,
    ),
    Output("lshosts", _lines(r"^HOST_NAME[ \t]+type[ \t]+model\b"), scheduler="lsf", part="hosts", command=lsf.HOSTS),
    Output("bparams", _lines(r"^Default Queues:[ \t]"), scheduler="lsf", part="parameters", command=lsf.PARAMETERS),
    Output(
        "qstat -Bf -F json",
        _json("pbs_version", "Server"),
        scheduler="pbs",
        part="server",
        convert=document,
        command=pbs.SERVER,
    ),
    Output(
        "qstat -Qf -F json",
        _json("pbs_version", "Queue"),
        scheduler="pbs",
        part="queues",
        convert=document,
        command=pbs.QUEUES,
    ),
    Output(
        "pbsnodes -a -F json",
        _json("pbs_version", "nodes"),
        scheduler="pbs",
        part="nodes",
        convert=document,
        command=pbs.NODES,
    ),
    Output("qstat -Qf", _lines(r"^Queue:[ \t]*\S+[ \t]*$"), scheduler="pbs", part="queues", convert=pbs_queues),
    Output("qstat -Bf", _lines(r"^Server:[ \t]*\S+[ \t]*$"), scheduler="pbs", part="server", convert=pbs_server),
    Output(
        "qstat -q",
        _lines(r"^Queue[ \t]+Memory[ \t]+CPU Time[ \t]+Walltime\b"),
        scheduler="pbs",
        part="queues",
        convert=pbs_queue_table,
    ),
    Output(
        "pbsnodes -aSj",
        _lines(r"^vnode[ \t]+state[ \t]+njobs\b"),
        scheduler="pbs",
        part="nodes",
        convert=pbs_node_table,
    ),
    Output(
        "pbsnodes -a",
        _lines(r"^[ \t]+(?:resources_available\.ncpus = \d|ntype = )"),
        scheduler="pbs",
        part="nodes",
        convert=pbs_nodes,
    ),
    Output(
        "flux resource list",
        _lines(r"^[ \t]*STATE[ \t]+(?:\w+[ \t]+)*NNODES[ \t].*NODELIST[ \t]*$"),
        scheduler="flux",
        part="resources",
        convert=_resources,
        command=flux.RESOURCES,
    ),
    Output(
        "flux queue list",
        _lines(r"^[ \t]*QUEUE[ \t]+(?:\w+[ \t]+)*NNODES[ \t]"),
        scheduler="flux",
        part="queues",
        convert=_queues_of_flux,
        command=flux.QUEUES,
    ),
    Output(
        "flux resource R",
        _json("execution", "R_lite"),
        scheduler="flux",
        part="resource_set",
        command=flux.RESOURCE_SET,
    ),
    Output("flux version", _lines(r"^libflux-core:[ \t]+\S"), scheduler="flux", part="version", command=flux.VERSION),
    # processors, GPUs and networks
    Output("lscpu", _lines(r"^[ \t]*Architecture:[ \t]+\S"), processor),
    Output("lscpu --json", _json("lscpu"), processor, command=lscpu.JSON),
    Output("numactl --hardware", _lines(r"^available: \d+ nodes? \("), numa),
    Output("nvidia-smi -L", _lines(r"^GPU \d+: .* \(UUID: GPU-"), nvidia_list),
    Output("nvidia-smi -q", _lines(r"^=+NVSMI LOG=+[ \t]*$"), nvidia_query),
    Output("nvidia-smi", _lines(r"^\|[ \t]*NVIDIA-SMI \d"), nvidia_table),
    Output(
        "nvidia-smi --query-gpu=name,compute_cap,memory.total --format=csv,noheader,nounits",
        re.compile(rf"\A(?:{_CARD}\n)*{_CARD}[ \t\n]*\Z"),
        queried(gpus.of_nvidia),
        command=gpus.NVIDIA,
    ),
    Output("rocm-smi --csv", _lines(r"^device,"), rocm_csv),
    Output("rocm-smi --showproductname", _lines(r"^GPU\[\d+\][ \t]*: (?:Card|GFX|VRAM)"), rocm_product),
    Output(
        "rocm-smi",
        _lines(r"^=+ (?:ROCm System Management Interface|ROCM-SMI\w*) ?=+|^GPU[ \t]+Temp[ \t]"),
        rocm_table,
    ),
    Output("rocm-smi --json", re.compile(r"\A\s*\{\s*\"card\d+\":"), queried(gpus.of_amd_json), command=gpus.AMD),
    Output(
        "amd-smi static --asic --vram --json",
        _json("asic", "market_name"),
        queried(gpus.of_amd_smi),
        command=gpus.AMD_NEW,
    ),
    Output("xpu-smi discovery", _lines(r"^\| Device ID +\| Device Information"), intel_table),
    Output("xpu-smi discovery -j", _json("device_list"), queried(gpus.of_intel), command=gpus.INTEL),
    Output("ibstat", _lines(r"^CA '[^'\n]+'"), network("ibstat"), command=("ibstat",)),
    Output("ibv_devinfo -v", _lines(r"^hca_id:[ \t]*\S"), network("ibv_devinfo"), command=("ibv_devinfo", "-v")),
    # software
    Output("ucx_info -v", _lines(r"^#?[ \t]*(?:Library version: |UCT version=|UCX version )\d"), ucx),
    Output("mpiname -a", _lines(r"^MVAPICH\S*[ \t]+\d\S*[ \t]"), library("mpiname"), command=("mpiname", "-a")),
    Output(
        "mpichversion",
        _lines(r"^(?:MPICH2?|MVAPICH\S*|CRAY MPICH)[ \t]+Version:[ \t]"),
        library("mpichversion"),
        command=("mpichversion",),
    ),
    Output("mpirun --version", _lines(r"^(?:mpirun|mpiexec|mpirun\.real|prterun) \(|^HYDRA build details:"), launcher),
    Output(
        "ompi_info",
        _lines(r"^[ \t]*(?:Package: )?(?:Open MPI|Spectrum MPI):? v?\d|^ompi:version:full:\d"),
        library("ompi_info"),
        command=("ompi_info", "--version"),
    ),
    Output("impi_info", _lines(r"^Intel\(R\) MPI Library.*, Version \d"), library("impi_info")),
    Output("module avail", _lines(r"^[ \t]*---.*---$|^/\S{1,500}:[ \t]*$"), modules),
)


def recognize(text: str) -> Output | None:
    """Return the kind of output that a text contains, or None if it is not recognized."""
    sample = "\n".join(line[:_LINE].rstrip() for line in text[:_SAMPLE].splitlines())
    return next((output for output in OUTPUTS if output.looks_like.search(sample)), None)


# Read a directory of manually saved output. Files are recognized by their contents, not by their names.


_MOST_BYTES, _MOST_FILES = 8 * 2**20, 200
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_PROMPT = re.compile(r"^(?:\[[^\]\n]{1,60}\]|[\w.@:~/-]{1,60})?[$%>] .*$", re.MULTILINE)
_ENCODINGS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig"))
_HINT = (
    "save what programs print in English (LC_ALL=C), one file each: `sinfo > sinfo.txt`, `lscpu > lscpu.txt`; "
    "docs/how-to/describe-a-site.md lists the supported programs; or record all with `hidl doctor --collect DIR`"
)


@dataclass(frozen=True)
class _SavedOutput:
    """A file whose output was recognized. ``value`` is the converted text; ``parsed`` contains its facts."""

    file: Path
    output: Output
    value: Any
    parsed: ParsedOutput

    @property
    def shown(self) -> str:
        return f"{self.file.name}: {self.output.title}: {self.parsed.words}"


def survey_folder(directory: Path, *, alone: bool = False) -> SurveyResult:
    """Read every file in the directory, but ignore scheduler output if ``alone`` is set.

    Raises ``UsageError`` if there are no files. Raises ``InvalidInput`` with all problems if a file's contents differ
    from what its program prints, or if no file contains facts for a site file.
    """
    saved, problems, unrecognized = _read(directory)
    if alone:
        saved = [one for one in saved if one.output.scheduler is None]
    if problems or not any(one.parsed.has_facts for one in saved):
        useless = [
            _problem(one.file, UnexpectedOutput(0, "facts of a site", f"{one.output.title}: {one.parsed.words}"))
            for one in saved
            if not one.parsed.has_facts
        ]
        what = "contains outputs that cannot be read" if problems else "contains no facts about a site"
        raise InvalidInput(f"{directory} {what}", problems=[*problems, *unrecognized, *useless], hint=_HINT)
    batch, contradictions = _batch(saved)
    processor, differs = _first(saved, "processor")
    cards, differ = _first(saved, "cards")
    network, other = _first(saved, "interconnect")
    contradictions = [*contradictions, *differs, *differ, *other]
    found = SurveyResult(
        hostname="",
        machine=Machine(arch="", cpu=None, sockets=None, cores=1, threads_per_core=None, memory_gib=None),
        cards=cards,
        batch=batch,
        launchers={name: one.file.name for one in saved for name in one.parsed.launchers},
        libraries=tuple(
            replace(each, source=f"{each.source} ({one.file.name})") for one in saved for each in one.parsed.libraries
        ),
        interconnect=network,
        remarks=(
            *(f"{one.file.name}: {remark}" for one in saved for remark in one.parsed.remarks),
            *(f"contradiction: {each}" for each in contradictions),
            *(f"not read: {problem.message}" for problem in unrecognized),
        ),
        installed=tuple({each.package: each for one in saved for each in reversed(one.parsed.installed)}.values()),
        read=tuple(one.shown for one in saved),
    )
    return _on_its_nodes(found, processor)


def foreign(host: RecordedHost) -> Sequence[Problem]:
    """Return a problem for each file in a recording whose name and contents belong to different commands."""
    commands = {file_name(output.command): output for output in OUTPUTS if output.command}
    found = []
    for file in sorted(host.directory.glob("*.txt")):
        expected = commands.get(file.name)
        if expected is None:
            continue
        output = recognize(_text(file))
        if output is not None and output.title != expected.title and output.command != expected.command:
            unexpected = UnexpectedOutput(1, f"the output of `{expected.title}`", f"the output of `{output.title}`")
            found.append(_problem(file, unexpected))
    return found


def _read(directory: Path) -> tuple[list[_SavedOutput], list[Problem], list[Problem]]:
    """Return the saved output, the problems in invalid files, and the problems with unrecognized files."""
    try:
        files = sorted(file for file in directory.iterdir() if not file.name.startswith(".") and not file.is_dir())
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be read: {error.strerror}", hint="pass a directory that contains saved program output"
        ) from error
    if not files:
        raise UsageError(f"{directory} contains no recorded outputs", hint=_HINT)
    if len(files) > _MOST_FILES:
        raise UsageError(f"{directory} contains {len(files)} files", hint=f"at most {_MOST_FILES} files are supported")
    saved, problems, unrecognized = [], [], []
    for file in files:
        try:
            text = _text(file)
            output = recognize(text)
            if output is None:
                first = next(filter(str.strip, text.splitlines()), "")
                raise _UnknownOutput(1 if first else 0, "the output of a supported program", quoted(first))
            saved.append(_saved(file, output, text))
        except _UnknownOutput as error:
            unrecognized.append(_problem(file, error))
        except UnexpectedOutput as error:
            problems.append(_problem(file, error))
    return saved, problems, unrecognized


class _UnknownOutput(UnexpectedOutput):
    """Text that no known program prints."""


def _text(file: Path) -> str:
    """Return the text without colours, carriage returns, common indentation and shell prompts."""
    try:
        if not file.is_file():
            raise _UnknownOutput(0, "a regular file", "something else")
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _UnknownOutput(0, "a readable file", str(error.strerror)) from error
    if len(data) > _MOST_BYTES:
        raise _UnknownOutput(0, f"at most {_MOST_BYTES // 2**20} MiB", "more")
    encoding = next(name for mark, name in _ENCODINGS if data.startswith(mark))
    text = data.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")
    text = _COLOURS.sub("", text)
    return textwrap.dedent(_PROMPT.sub("", text))


def _problem(file: Path, error: UnexpectedOutput) -> Problem:
    where = f"{file.name} line {error.line}" if error.line else file.name
    message = f"{where}: expected {error.expected}, found {error.found}"
    return Problem(message, error.expected, mark=Mark(file))


def _saved(file: Path, output: Output, text: str) -> _SavedOutput:
    """Parse recognized output. Raises ``UnexpectedOutput`` if the program would not print it."""
    if output.read is not None:
        return _SavedOutput(file, output, text, output.read(text))
    value = output.convert(text)
    batch = output.batch(text) if output.batch else DESCRIBE[output.scheduler or ""](**{output.part or "": value})
    words = [count(len(each), noun) for each, noun in ((batch.queues, "queue"), (batch.nodes, "node")) if each]
    words += [f"cluster {batch.cluster}"] if batch.cluster else []
    words += [f"version {batch.version}"] if batch.version else []
    if output.part in _MUST_HAVE and not words:
        raise UnexpectedOutput(0, f"a {_MUST_HAVE[output.part]}", "none")
    if isinstance(value, Mapping) and output.part == "nodes":
        words.append(f"states: {states(value.get('nodes', {}))}")
    return _SavedOutput(file, output, value, ParsedOutput(", ".join(words) or "read", batch=batch))


#: The kind of entry that each output (``Output.part``) must contain.
_MUST_HAVE = {"nodes": "node", "queues": "queue", "partitions": "partition", "resources": "node", "server": "server"}


def _batch(saved: Sequence[_SavedOutput]) -> tuple[SchedulerFacts | None, Sequence[str]]:
    """Return the scheduler that most files describe, and all contradictions, such as files about other schedulers."""
    described = [one for one in saved if one.output.scheduler]
    if not described:
        return None, ()
    names = [one.output.scheduler for one in described]
    scheduler = max(dict.fromkeys(names), key=names.count) or ""
    title = SYSTEMS[scheduler].title
    others = [
        f"{one.file.name} describes {SYSTEMS[one.output.scheduler or ''].title}, but this draft is for {title}"
        for one in described
        if one.output.scheduler != scheduler
    ]
    own = [one for one in described if one.output.scheduler == scheduler]
    batch, contradictions = merged(list(_sources(scheduler, own)))
    types = tuple(name for one in saved for name in one.parsed.srun_mpi)
    sources = tuple(f"{one.output.title} ({one.file.name})" for one in own)
    return replace(batch, sources=sources, srun_mpi=types or batch.srun_mpi), [*contradictions, *others]


def _sources(scheduler: str, described: Sequence[_SavedOutput]) -> Iterator[SchedulerOutput]:
    """Yield a description that combines the first file of each kind (``part``), and then one for each other file."""
    parts: dict[str, _SavedOutput] = {}
    alone = []
    for one in described:
        if one.output.part and one.output.part not in parts:
            parts[one.output.part] = one
        else:
            alone.append(one)
    if parts:
        files = ", ".join(one.file.name for one in parts.values())
        yield SchedulerOutput(files, DESCRIBE[scheduler](**{part: one.value for part, one in parts.items()}))
    for one in alone:
        if one.parsed.batch:
            yield SchedulerOutput(one.file.name, one.parsed.batch)


def _first(saved: Sequence[_SavedOutput], fact: str) -> tuple[Any, list[str]]:
    """Return a fact's first value, completed from other files, and the differences between files."""
    values = [(one, value) for one in saved if (value := getattr(one.parsed, fact)) is not None]
    if not values:
        return None, []
    (first, known), *others = values
    differ = [f"{first.shown}, but {one.shown}" for one, value in others if _unlike(known, value)]
    merged_ = _filled(known, [value for _, value in others if not _unlike(known, value)])
    return merged_, differ


def _unlike(one: Any, other: Any) -> bool:
    if isinstance(one, Cards):
        return one.count != other.count or bool(one.model and other.model and not _same_model(one.model, other.model))
    if isinstance(one, Processor):
        pairs = [(getattr(one, key), getattr(other, key)) for key in ("cpu", "cores", "processors")]
        return any(ours is not None and theirs is not None and ours != theirs for ours, theirs in pairs)
    return bool(one.value != other.value)


def _same_model(one: str, other: str) -> bool:
    """Return whether one name is a prefix of the other, because ``nvidia-smi`` truncates names."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short)


def _filled(known: Any, others: Sequence[Any]) -> Any:
    """Complete the description of cards or of a processor with values printed by other tools."""
    for other in others:
        if isinstance(known, Processor):
            theirs = {key: value for key, value in asdict(other).items() if getattr(known, key) is None}
            known = replace(known, **theirs)
        if isinstance(known, Cards):
            model = max(filter(None, (known.model, other.model)), key=len, default=None)
            known = replace(
                known, model=model, arch=known.arch or other.arch, memory_gib=known.memory_gib or other.memory_gib
            )
    return known


def _on_its_nodes(found: SurveyResult, processor: Processor | None) -> SurveyResult:
    """Add the processor and the GPUs to the kind of node that matches them, if there is exactly one."""
    known = kinds(found.batch.nodes) if found.batch else ()
    own = Hardware()
    remarks, cards = list(found.remarks), found.cards
    if processor is not None:
        fits = [kind for kind in known if _may_be(kind, processor)]
        if not known or len(fits) == 1:
            found = replace(found, machine=replace(found.machine, arch=processor.arch or "", cpu=processor.cpu))
            own = Hardware(
                sockets=processor.sockets,
                cores=processor.cores,
                threads_per_core=processor.threads_per_core,
                processors=None if processor.cores else processor.processors,
            )
            found = replace(found, described=_names(fits))
        else:
            which = "no kind of node" if not fits else "more than one kind of node"
            remarks.append(f"the processor ({_words(processor)}) fits {which} and is left out")
    if cards is not None:
        with_gpus = [kind for kind in known if kind.hardware.gpus in (None, cards.count)]
        fitting = [kind for kind in with_gpus if kind.hardware.gpus] or with_gpus
        if not known or len(fitting) == 1:
            own = replace(own, gpus=cards.count, gpu_model=cards.model)
            found = replace(found, with_cards=_names(fitting))
        else:
            which = "no kind of node" if not fitting else "more than one kind of node"
            model = cards.model or "model unknown"
            remarks.append(f"the {count(cards.count, 'GPU')} ({model}) fit {which} and are left out")
    return replace(_added(found, own), remarks=tuple(remarks))


def _added(found: SurveyResult, own: Hardware) -> SurveyResult:
    """Add the hardware of the examined host (``own``) to all nodes of the same kind."""
    if found.batch is None or not found.batch.nodes:
        return replace(found, unknown_nodes=own)
    cards = ("gpus", "gpu_model")
    nodes = []
    for node in found.batch.nodes:
        keys = [key for key in ("sockets", "cores", "threads_per_core") if node.name in found.described]
        keys += [key for key in cards if node.name in found.with_cards]
        unknown = {key: getattr(own, key) for key in keys if getattr(node.hardware, key) is None}
        nodes.append(replace(node, hardware=replace(node.hardware, **unknown)))
    return replace(found, batch=replace(found.batch, nodes=tuple(nodes)))


def _may_be(kind: NodeKind, processor: Processor) -> bool:
    """Return whether the processor matches what is known about the kind of node.

    Core counts may differ because schedulers can reserve cores.
    """
    hardware = kind.hardware
    pairs = [(getattr(hardware, key), getattr(processor, key)) for key in ("sockets", "threads_per_core")]
    pairs.append((kind.arch, processor.arch))
    if any(one is not None and other is not None and one != other for one, other in pairs):
        return False
    if hardware.cores and processor.cores and not processor.cores * 0.8 <= hardware.cores <= processor.cores:
        return False
    return not (hardware.processors and hardware.processors not in (processor.processors, processor.cores))


def _names(fits: Sequence[NodeKind]) -> frozenset[str]:
    return frozenset(node.name for kind in fits for node in kind.nodes)


def _words(processor: Processor) -> str:
    return processor.cpu or f"{processor.processors} CPUs"


def survey_from(directory: Path, *, alone: bool = False) -> tuple[SurveyResult, Sequence[str]]:
    """Return the facts found in ``directory``, and the commands that failed on the recorded machine.

    If ``alone`` is set, schedulers are ignored. Raises ``UsageError`` if there is nothing to read, and ``InvalidInput``
    if something cannot be read or does not describe a machine.
    """
    if not (directory / DESCRIPTION).is_file():
        return survey_folder(directory, alone=alone), ()
    host = load_host(directory)
    if problems := foreign(host):
        raise InvalidInput(
            f"{directory} contains output from other commands", problems=problems, hint="record it again"
        )
    return survey_recorded(host, alone=alone), host.failures
