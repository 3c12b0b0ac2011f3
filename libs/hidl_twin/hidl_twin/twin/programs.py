"""Stand-in programs of a twin: each says so in its first line, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hidl_cli.documents import write_json, write_text
from hidl_cli.quoting import sh

#: The stand-ins for launchers: programs of their own, which import nothing of hidl's.
STANDINS = Path(__file__).parents[1] / "standins"


#: What lists GPUs, by a word of their model; NVIDIA's for others.
_GPU_TOOLS = {"AMD": "rocm-smi", "Intel": "xpu-smi"}


@dataclass(frozen=True)
class GpusOfHost:
    """``count`` GPUs of a host, of ``memory`` MiB; None: unknown."""

    count: int
    model: str
    memory: int | None


@dataclass(frozen=True)
class ProgressLines:
    """Progress of installations while a cluster comes up: a line per step."""

    say: Callable[[str], None]

    @contextmanager
    def step(self, title: str, log: Path | None = None) -> Iterator[None]:
        """Report the step's title."""
        self.say(title)
        yield


def write_version_printer(file: Path, text: str) -> None:
    """Write a program that prints ``text`` for any arguments."""
    _write(file, f"echo {sh(f'{file.name}: a stand-in of hidl cluster')} >&2\nprintf '%s\\n' {sh(text)}\n")


def write_version_wrapper(file: Path, version: str, true: Path) -> None:
    """Write a wrapper of ``true`` that prints ``version`` for --version."""
    asked = "for word; do\n    case $word in -V | -version | --version)\n"
    tells = f"        printf '%s\\n' {sh(version)}\n        exit 0 ;;\n    esac\ndone\n"
    _write(file, f'{asked}{tells}exec {sh(str(true))} "$@"\n')


def write_compiler_wrapper(file: Path, version: str, true: Path) -> None:
    """Write a wrapper of compiler ``true`` that reports ``version``."""
    numbers = f"-dumpfullversion | -dumpversion)\n        printf '%s\\n' {sh(version)}\n        exit 0 ;;\n"
    words = f"    --version)\n        printf '%s (stand-in) %s\\n' {sh(file.name)} {sh(version)}\n        exit 0 ;;\n"
    _write(file, f'for word; do\n    case $word in\n    {numbers}{words}    esac\ndone\nexec {sh(str(true))} "$@"\n')


def write_launcher(file: Path, name: str) -> None:
    """Link the stand-in for launcher ``name``, which needs the files beside it."""
    file.unlink(missing_ok=True)
    file.symlink_to(STANDINS / name)


def write_gpu_tools(directory: Path, hosts: Mapping[str, GpusOfHost]) -> None:
    """Link a stand-in for the tool that lists the GPUs of ``hosts``; hosts without GPUs are left out."""
    if not hosts:
        return
    write_json(directory / "gpus.json", {name: asdict(gpus) for name, gpus in hosts.items()})
    for gpus in hosts.values():
        file = directory / next((tool for vendor, tool in _GPU_TOOLS.items() if vendor in gpus.model), "nvidia-smi")
        file.unlink(missing_ok=True)
        file.symlink_to(STANDINS / "gpu_tool")


def _write(file: Path, body: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, f"#!/bin/sh\n# Written by `hidl cluster up`, which overwrites changes.\n{body}", mode=0o755)
