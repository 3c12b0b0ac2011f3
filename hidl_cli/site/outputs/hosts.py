"""What programs tell of one host: its processor, network and software."""

from __future__ import annotations

import re
from collections.abc import Callable

from hidl_cli.mpi import RUNTIMES, TRAITS, tell
from hidl_cli.site.outputs.told import Misread, Told, count
from hidl_cli.site.probes import fabric, lscpu, modules, mpi, slurm
from hidl_cli.site.probes.facts import Fact, Installed, Library, Processor

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


def processor(text: str) -> Told:
    """``lscpu``, as text or JSON.

    Raises ``Misread`` where it tells no number of processors.
    """
    fields = lscpu.fields(text)
    processors = _number(fields.get("CPU(s)"))
    if processors is None:
        raise Misread(0, "a number after `CPU(s):`", "none")
    sockets, threads = _number(fields.get("Socket(s)")), _number(fields.get("Thread(s) per core"))
    per_socket, per_cluster = _number(fields.get("Core(s) per socket")), _number(fields.get("Core(s) per cluster"))
    clusters = _number(fields.get("Cluster(s)"))
    cores = sockets * per_socket if sockets and per_socket else None
    if cores is None and clusters and per_cluster:
        cores = clusters * per_cluster
    remarks = []
    if cores and threads and cores * threads != processors:
        remarks.append(
            f"{cores} cores of {count(threads, 'thread')} are not the {processors} CPUs that it tells: see which"
        )
        cores = None
    numa = _number(fields.get("NUMA node(s)"))
    model, arch = fields.get(lscpu.MODEL), fields.get("Architecture")
    if fields.get("Hypervisor vendor"):
        remarks.append("a virtual machine: the cores may be those that it was given")
    words = [model or "a processor", f"{cores} cores" if cores else f"{processors} CPUs"]
    if numa:
        words.append(count(numa, "NUMA node"))
    return Told(
        ", ".join(words),
        processor=Processor(model, arch, sockets, cores, threads, processors),
        remarks=tuple(remarks),
    )


def numa(text: str) -> Told:
    """``numactl --hardware``: NUMA nodes and CPUs, which may be cores or threads.

    Raises ``Misread`` where it lists no CPUs.
    """
    cpus = [len(found[2].split()) for found in _NUMA_CPUS.finditer(text)]
    if not sum(cpus):
        raise Misread(0, "a line `node 0 cpus: ...`", "none")
    words = f"{count(sum(cpus), 'CPU')}, {count(len([one for one in cpus if one]), 'NUMA node')} with CPUs"
    return Told(words, processor=Processor(None, None, None, None, None, sum(cpus)))


def network(ask: str) -> Callable[[str], Told]:
    """``ibstat`` or ``ibv_devinfo``, as ``ask`` names it."""

    def read(text: str) -> Told:
        fact = fabric.described(ask, text)
        if fact is None:
            return Told("no port that is active")
        return Told(fact, interconnect=Fact(fact, ask))

    return read


def library(program: str) -> Callable[[str], Told]:
    """A program of ``TELLERS``."""

    def read(text: str) -> Told:
        found = tell(program, _VERSION_OF_OPEN_MPI.sub("Open MPI: ", text))
        if found is None:
            return Told("an MPI library that hidl does not know")
        family, version = found
        prefix = _PREFIX.search(text) or re.search(
            r"^(?:[ \t]*Prefix|path:prefix):[ \t]*(/\S{1,500})(?!\S)", text, re.MULTILINE
        )
        place = prefix[1] if prefix else None
        words = f"{TRAITS[family].printed} {version}"
        return Told(words, libraries=(Library(f"{family}-{version}", family, version, program, prefix=place),))

    return read


def launcher(text: str) -> Told:
    """``mpiexec --version`` or ``mpirun --version``: whose it is."""
    abi = next((abi for abi, pattern in RUNTIMES.items() if re.search(pattern, text)), None)
    version = re.search(r"(?:Version:[ \t]{0,80}|\) )(\d\S{0,60})", text)
    number = f" {version[1]}" if version else ""
    if abi == "openmpi":
        return Told(f"mpirun of Open MPI{number}", launchers=("mpirun",))
    return Told(f"mpiexec of MPICH or a derivative{number}", launchers=("mpiexec",))


def mpi_types(text: str) -> Told:
    """``srun --mpi=list``."""
    types = slurm.types(text)
    if not types:
        raise Misread(0, "the names of plugins", "none")
    return Told(f"`srun --mpi=` takes {', '.join(types)}", launchers=("srun",), srun_mpi=types)


def offered(text: str) -> Told:
    """``module avail`` as it is printed for people, or in terse form: the MPI libraries in it."""
    sections: list[tuple[str, list[modules.Offered]]] = []
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
            sections[-1][1].extend(filter(None, map(modules.read_name, words)))
    everything = [module for _, its in sections for module in its]
    if not everything:
        raise Misread(0, "names of modules below the name of a directory", "none")
    loaded = {module.name for module in everything if module.is_loaded}
    listed = [
        modules.Offered(module.name, module.is_default, module.is_loaded, _needed(directory, loaded))
        for directory, its in sections
        for module in its
    ]
    libraries = tuple(mpi.of_modules(listed))
    words_ = f"{count(len(listed), 'module')}, {len(libraries)} of MPI libraries"
    return Told(words_ + (f"; loaded: {', '.join(sorted(loaded)[:10])}" if loaded else ""), libraries=libraries)


def _needed(directory: str, loaded: set[str]) -> tuple[str, ...]:
    """The module that opened a directory of a tree: ``.../Compiler/gcc/8.3.1`` is there once gcc/8.3.1 is loaded."""
    opened = "/".join(directory.rstrip("/").split("/")[-2:])
    return (opened,) if opened in loaded else ()


def ucx(text: str) -> Told:
    """``ucx_info -v``; a user's own build is no software of the site."""
    found = _UCX.search(text)
    if found is None:
        raise Misread(0, "a version of UCX", "none")
    prefix = _UCX_PREFIX.search(text)
    place = prefix[1] if prefix else None
    words = f"UCX {found[1]}" + (f" in {place}" if place else "")
    if place is None or not _SYSTEM.match(place):
        return Told(words + ", which need not be the site's: no fact for the draft")
    return Told(words, installed=(Installed("ucx", found[1], place, "ucx_info -v"),))


def _number(text: str | None) -> int | None:
    return int(text) or None if text and text.isdecimal() and len(text) < 8 else None
