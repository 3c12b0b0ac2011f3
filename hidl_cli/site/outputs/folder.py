"""A folder of outputs that were saved by hand, as facts of a site: each file by what is in it, not by its name."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.errors import InvalidInput, Mark, Problem, UsageError
from hidl_cli.site.machine import Machine
from hidl_cli.site.node_kinds import Kind, kinds
from hidl_cli.site.outputs.known import DESCRIBE, OUTPUTS, Output, recognize
from hidl_cli.site.outputs.merging import Source, merged
from hidl_cli.site.outputs.queues import states
from hidl_cli.site.outputs.told import Misread, Told, count, quoted
from hidl_cli.site.probes.facts import Batch, Hardware, Processor
from hidl_cli.site.probes.gpus import Cards
from hidl_cli.site.probes.recorded import RecordedHost, file_name
from hidl_cli.site.probes.survey import Found

T = TypeVar("T")

_MOST_BYTES, _MOST_FILES = 8 * 2**20, 200
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_PROMPT = re.compile(r"^(?:\[[^\]\n]{1,60}\]|[\w.@:~/-]{1,60})?[$%>] .*$", re.MULTILINE)
_ENCODINGS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig"))
_HINT = (
    "save what programs print in English (LC_ALL=C), a file each: `sinfo > sinfo.txt`, `lscpu > lscpu.txt`; "
    "docs/how-to/describe-a-site.md lists those that hidl reads; or record all with `hidl doctor --collect DIR`"
)


@dataclass(frozen=True)
class _Saved:
    """One file, and what its program is."""

    file: Path
    output: Output
    value: Any
    told: Told

    @property
    def shown(self) -> str:
        return f"{self.file.name}: {self.output.title}: {self.told.words}"


def survey_folder(directory: Path, *, alone: bool = False) -> Found:
    """Read every file of the folder, but those of schedulers if ``alone``.

    Raises ``UsageError`` where there is none, and ``InvalidInput`` with what is wrong in each file where one is not as
    its program prints it, or where no file has a fact for a site's file.
    """
    saved, problems, strangers = _read(directory)
    if alone:
        saved = [one for one in saved if one.output.scheduler is None]
    if problems or not any(one.told.has_facts for one in saved):
        told = [
            _problem(one.file, Misread(0, "facts of a site", f"{one.output.title}: {one.told.words}"))
            for one in saved
            if not one.told.has_facts
        ]
        what = "holds outputs that cannot be read" if problems else "holds nothing that tells of a site"
        raise InvalidInput(f"{directory} {what}", problems=[*problems, *strangers, *told], hint=_HINT)
    batch, contradictions = _batch(saved)
    processor, differs = _first(saved, "processor")
    cards, differ = _first(saved, "cards")
    network, other = _first(saved, "interconnect")
    contradictions = [*contradictions, *differs, *differ, *other]
    found = Found(
        hostname="",
        machine=Machine(arch="", cpu=None, sockets=None, cores=1, threads_per_core=None, memory_gib=None),
        cards=cards,
        batch=batch,
        launchers={name: one.file.name for one in saved for name in one.told.launchers},
        libraries=tuple(
            replace(each, source=f"{each.source} ({one.file.name})") for one in saved for each in one.told.libraries
        ),
        interconnect=network,
        remarks=(
            *(f"{one.file.name}: {remark}" for one in saved for remark in one.told.remarks),
            *(f"they differ: {each}" for each in contradictions),
            *(f"not read: {problem.message}" for problem in strangers),
        ),
        installed=tuple({each.package: each for one in saved for each in reversed(one.told.installed)}.values()),
        read=tuple(one.shown for one in saved),
    )
    return _on_its_nodes(found, processor)


def foreign(host: RecordedHost) -> Sequence[Problem]:
    """The answers of a recording that are another command's than the file's name says."""
    commands = {file_name(output.command): output for output in OUTPUTS if output.command}
    found = []
    for file in sorted(host.directory.glob("*.txt")):
        asked = commands.get(file.name)
        if asked is None:
            continue
        output = recognize(_text(file))
        if output is not None and output.title != asked.title and output.command != asked.command:
            found.append(_problem(file, Misread(1, f"what `{asked.title}` prints", f"the output of `{output.title}`")))
    return found


def _read(directory: Path) -> tuple[list[_Saved], list[Problem], list[Problem]]:
    """The files that were read, the problems of those that are faulty, and of those that nobody knows."""
    try:
        files = sorted(file for file in directory.iterdir() if not file.name.startswith(".") and not file.is_dir())
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be read: {error.strerror}", hint="name a folder of saved outputs"
        ) from error
    if not files:
        raise UsageError(f"{directory} holds no recorded outputs", hint=_HINT)
    if len(files) > _MOST_FILES:
        raise UsageError(f"{directory} holds {len(files)} files", hint=f"name a folder of at most {_MOST_FILES}")
    saved, problems, strangers = [], [], []
    for file in files:
        try:
            text = _text(file)
            output = recognize(text)
            if output is None:
                first = next(filter(str.strip, text.splitlines()), "")
                raise _Unknown(1 if first else 0, "the output of a program that hidl reads", quoted(first))
            saved.append(_saved(file, output, text))
        except _Unknown as unknown:
            strangers.append(_problem(file, unknown))
        except Misread as misread:
            problems.append(_problem(file, misread))
    return saved, problems, strangers


class _Unknown(Misread):
    """No program that hidl reads prints such a text."""


def _text(file: Path) -> str:
    """The text without colours, carriage returns, a common indentation and the lines that a shell's user typed."""
    try:
        if not file.is_file():
            raise _Unknown(0, "a plain file", "something else")
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _Unknown(0, "a file that can be read", str(error.strerror)) from error
    if len(data) > _MOST_BYTES:
        raise _Unknown(0, f"at most {_MOST_BYTES // 2**20} MiB", "more")
    encoding = next(name for mark, name in _ENCODINGS if data.startswith(mark))
    text = data.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")
    text = _COLOURS.sub("", text)
    return textwrap.dedent(_PROMPT.sub("", text))


def _problem(file: Path, misread: Misread) -> Problem:
    where = f"{file.name} line {misread.line}" if misread.line else file.name
    message = f"{where}: expected {misread.expected}, found {misread.found}"
    return Problem(message, misread.expected, mark=Mark(file))


def _saved(file: Path, output: Output, text: str) -> _Saved:
    """Raises ``Misread``."""
    if output.read is not None:
        told = output.read(text)
        return _Saved(file, output, text, told)
    value = output.convert(text)
    batch = output.batch(text) if output.batch else DESCRIBE[output.scheduler or ""](**{output.part or "": value})
    words = [count(len(each), noun) for each, noun in ((batch.queues, "queue"), (batch.nodes, "node")) if each]
    words += [f"cluster {batch.cluster}"] if batch.cluster else []
    words += [f"version {batch.version}"] if batch.version else []
    if output.part in _MUST_HAVE and not words:
        raise Misread(0, f"a {_MUST_HAVE[output.part]}", "none")
    if isinstance(value, Mapping) and output.part == "nodes":
        words.append(f"states: {states(value.get('nodes', {}))}")
    return _Saved(file, output, value, Told(", ".join(words) or "read", batch=batch))


#: What a part without which it tells nothing has.
_MUST_HAVE = {"nodes": "node", "queues": "queue", "partitions": "partition", "resources": "node", "server": "server"}


def _batch(saved: Sequence[_Saved]) -> tuple[Batch | None, Sequence[str]]:
    """The scheduler that the most files tell of; contradictions, the other schedulers among them."""
    told = [one for one in saved if one.output.scheduler]
    if not told:
        return None, ()
    names = [one.output.scheduler for one in told]
    scheduler = max(dict.fromkeys(names), key=names.count) or ""
    title = SYSTEMS[scheduler].title
    others = [
        f"{one.file.name} is of {SYSTEMS[one.output.scheduler or ''].title}, and this draft describes {title}"
        for one in told
        if one.output.scheduler != scheduler
    ]
    batch, contradictions = merged(
        list(_sources(scheduler, [one for one in told if one.output.scheduler == scheduler]))
    )
    types = tuple(name for one in saved for name in one.told.srun_mpi)
    sources = tuple(f"{one.output.title} ({one.file.name})" for one in told if one.output.scheduler == scheduler)
    return replace(batch, sources=sources, srun_mpi=types or batch.srun_mpi), [*contradictions, *others]


def _sources(scheduler: str, told: Sequence[_Saved]) -> Iterator[Source]:
    """One description by the first file of each part, and one by each file of its own."""
    parts: dict[str, _Saved] = {}
    alone = []
    for one in told:
        if one.output.part and one.output.part not in parts:
            parts[one.output.part] = one
        else:
            alone.append(one)
    if parts:
        files = ", ".join(one.file.name for one in parts.values())
        yield Source(files, DESCRIBE[scheduler](**{part: one.value for part, one in parts.items()}))
    for one in alone:
        if one.told.batch:
            yield Source(one.file.name, one.told.batch)


def _first(saved: Sequence[_Saved], fact: str) -> tuple[Any, list[str]]:
    """The first value of a fact that one file is enough for, and the files that say otherwise."""
    values = [(one, value) for one in saved if (value := getattr(one.told, fact)) is not None]
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
    """Whether one is the beginning of the other: ``nvidia-smi`` cuts names off."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short)


def _filled(known: Any, others: Sequence[Any]) -> Any:
    """Cards, and a processor, with what other tools know of the same ones."""
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


def _on_its_nodes(found: Found, processor: Processor | None) -> Found:
    """Find the kind of node that the processor and the GPUs are of: the only one that they can be of."""
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
            remarks.append(f"the processor ({_words(processor)}) fits {which}: it stands in none")
    if cards is not None:
        with_gpus = [kind for kind in known if kind.hardware.gpus in (None, cards.count)]
        fitting = [kind for kind in with_gpus if kind.hardware.gpus] or with_gpus
        if not known or len(fitting) == 1:
            own = replace(own, gpus=cards.count, gpu_model=cards.model)
            found = replace(found, with_cards=_names(fitting))
        else:
            which = "no kind of node" if not fitting else "more than one kind of node"
            remarks.append(
                f"the {count(cards.count, 'GPU')} ({cards.model or 'model unknown'}) fit {which}: they stand in none"
            )
    return replace(_added(found, own), remarks=tuple(remarks))


def _added(found: Found, own: Hardware) -> Found:
    """The facts of the host that was looked at, in the nodes of its kind."""
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


def _may_be(kind: Kind, processor: Processor) -> bool:
    """Whether nothing that is known of the kind contradicts the processor; a scheduler may keep cores for itself."""
    hardware = kind.hardware
    pairs = [(getattr(hardware, key), getattr(processor, key)) for key in ("sockets", "threads_per_core")]
    pairs.append((kind.arch, processor.arch))
    if any(one is not None and other is not None and one != other for one, other in pairs):
        return False
    if hardware.cores and processor.cores and not processor.cores * 0.8 <= hardware.cores <= processor.cores:
        return False
    return not (hardware.processors and hardware.processors not in (processor.processors, processor.cores))


def _names(fits: Sequence[Kind]) -> frozenset[str]:
    return frozenset(node.name for kind in fits for node in kind.nodes)


def _words(processor: Processor) -> str:
    return processor.cpu or f"{processor.processors} CPUs"
