"""Files in the cluster's directory that make nodes report processors."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from hidl_cli import process
from hidl_cli.documents import write_text
from hidl_cli.errors import HidlError, MissingPrecondition, ProcessFailed
from hidl_twin.claimed import sysfs
from hidl_twin.claimed.processors import Processors
from hidl_twin.marks import plain_environment

SOURCE = Path(__file__).with_name("affinity.c")
_COMPILE_SECONDS = 120.0
# The file that the loader of shared libraries reads, and that which the nodes' loader reads: both of one length.
_PRELOADED, _PRELOADED_THERE = b"/etc/ld.so.preload\0", b"/run/ld.so.preload\0"


def claim(directory: Path, nodes: Mapping[str, Processors]) -> bool:
    """Create the files for these nodes (by name) below ``directory``; other nodes report this machine's processors.

    ``directory``/nodes/NAME is a link to what the node NAME shows. What is there already stays. Returns whether any
    node claims something else than before: such nodes must be started again. Raises ``MissingPrecondition`` where the
    library cannot be compiled, and ``HidlError`` where this machine's programs are not of the GNU C library.
    """
    links = directory / "nodes"
    links.mkdir(parents=True, exist_ok=True)
    before = {link.name: str(link.readlink()) for link in links.iterdir() if link.is_symlink()}
    kinds = {claimed: _ensure_kind(directory, claimed) for claimed in set(nodes.values())}
    after = {name: f"../{kinds[claimed].name}" for name, claimed in nodes.items()}
    for name in before.keys() - after.keys():
        (links / name).unlink()
    for name, target in after.items():
        if before.get(name) != target:
            new = links / f".{name}.new"
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(links / name)
    return before != after


def compile_library(library: Path, *, table: str | None = None) -> None:
    """Compile the preloaded library; ``table``: path of its table of masks, if not the usual one."""
    options = ["-O2", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden"]
    if table is not None:
        options.append(f'-DTABLE="{table}"')
    command: list[str | Path] = ["cc", *options, "-o", library, SOURCE, "-ldl"]
    try:
        process.run(command, env=plain_environment(), timeout=_COMPILE_SECONDS)
    except ProcessFailed as error:
        raise MissingPrecondition(
            f"cannot compile {SOURCE.name}, required for claimed processors: {error.output.strip()[:300]}",
            hint="install a C compiler with its headers: apt-get install --no-install-recommends gcc libc6-dev",
        ) from error


def _ensure_kind(directory: Path, claimed: Processors) -> Path:
    """Directory of a kind of nodes, named by a hash of its inputs: a change makes a new one."""
    code = [Path(__file__), Path(sysfs.__file__), SOURCE, _loader()]
    made_of = json.dumps([asdict(claimed), [hashlib.sha256(file.read_bytes()).hexdigest() for file in code]])
    name = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    kind = directory / f"{claimed.sockets}x{claimed.largest_socket}x{claimed.threads_per_core}-{name}"
    if not kind.is_dir():
        new = directory / f".{kind.name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        _make_kind(new, claimed)
        new.replace(kind)
    return kind


def _make_kind(place: Path, claimed: Processors) -> None:
    sysfs.write_cpu_tree(place / "cpu", claimed)
    sysfs.write_node_tree(place / "node", claimed, _memory_kib())
    real = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    write_text(place / "cpuinfo", sysfs.cpuinfo(real, claimed))
    sysfs.write_limits(place / "unlimited", claimed)
    # The head of the table of masks, see affinity.c; the node makes it as long as it must be.
    (place / "masks").write_bytes(claimed.cpus.to_bytes(4, "little"))
    compile_library(place / "affinity.so")
    loader = _loader()
    program = loader.read_bytes()
    if program.count(_PRELOADED) != 1:
        raise HidlError(f"unsupported loader {loader}: claimed processors require the GNU C library")
    (place / "loader").write_bytes(program.replace(_PRELOADED, _PRELOADED_THERE))
    (place / "loader").chmod(0o755)
    write_text(place / "loader.path", f"{loader}\n")


def _loader() -> Path:
    """The dynamic loader that this machine's programs name."""
    head = Path("/bin/sh").read_bytes()[:8192]
    if (found := re.search(rb"\0(/lib[^\0]*/ld[^\0/]*\.so[^\0/]*)\0", head)) is None:
        raise HidlError("/bin/sh has no dynamic loader: claimed processors require one")
    return Path(found[1].decode()).resolve()


def _memory_kib() -> int:
    found = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0
