"""How people use an installation: a script to source and a modulefile to load.

The modulefile is Tcl: Environment Modules reads no other, and Lmod reads it as well as its own Lua.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hidl_cli import process
from hidl_cli.documents import read_json
from hidl_cli.errors import InvalidInput, MissingPrecondition, ProcessFailed
from hidl_cli.mpi import SONAMES, TRAITS, Abi, Family
from hidl_cli.quoting import comment, sh
from hidl_cli.stack import content, own_wheel
from hidl_cli.stack.installation import UNSET, Installation, variables
from hidl_cli.stack.plan import UNUSABLE, InstallPlan
from hidl_cli.templates import render_modulefile, render_script


@dataclass(frozen=True)
class Activation:
    """The texts of both."""

    script: str
    modulefile: str


def render(plan: InstallPlan) -> Activation:
    """Render what the plan's installation will be used by; nothing is written."""
    values = {
        "site": plan.site,
        "stack": plan.stack,
        "id": plan.id,
        "title": comment(f"{plan.stack}: {plan.title} (hidl, site {plan.site}, {plan.id})"),
        "prefix": str(plan.prefix),
        "bin": str(plan.prefix / "bin"),
        "variables": variables(plan.prefix, plan.stack),
        "unset": UNSET,
    }
    return Activation(
        script=render_script("activate.sh.j2", values),
        modulefile=render_modulefile("modulefile.tcl.j2", values),
    )


# An environment of the user's own (venv, conda or any prefix with a Python) that runs start in, as an installation.


Kind = Literal["venv", "conda", "prefix"]

_OLDEST = (3, 10)  # of the Pythons that hidl's own modules run on
_SECONDS = 60.0
_PACKAGE = "hidl_workloads"


@dataclass(frozen=True)
class Described:
    """What ``plan.json`` keeps of an environment.

    ``python``: its version; ``packages``: versions by name, conda's too. ``linked``: the ABIs that mpi4py and Horovod
    were built for. ``mpi``: family of its own MPI library, None without one. ``mpi_stack``: hidl's stack that the MPI
    library is of, None if it is the environment's own or the site's. ``support``: what its jobs need besides.
    """

    directory: str
    kind: Kind
    python: str
    packages: Mapping[str, str]
    linked: Mapping[str, tuple[str, ...]]
    support: str
    mpi: Family | None = None
    mpi_stack: str | None = None

    @property
    def name(self) -> str:
        """How runs call it in the place of a stack."""
        return f"env:{Path(self.directory).name}"

    @property
    def has_mpi4py(self) -> bool:
        """Is mpi4py installed?"""
        return "mpi4py" in self.packages

    @property
    def starter(self) -> str:
        """The file that runs a module of hidl in this environment."""
        return str(Path(self.support, _PACKAGE, "start.py"))


@dataclass(frozen=True)
class Environment(Installation):
    """The environment as the installation that a run starts in."""

    described: Described

    @property
    def activate(self) -> Path:
        """The script that a job sources."""
        return Path(self.described.support, "activate.sh")

    @property
    def abi(self) -> Abi:
        """The ABI of its own MPI library, else the one that its mpi4py was built for; MPICH's if any serves."""
        if self.described.mpi is not None:
            return TRAITS[self.described.mpi].abi
        return "openmpi" if self.described.linked.get("mpi4py") == ("openmpi",) else "mpich"

    def run_module(self, module: str) -> tuple[str, ...]:
        """See ``Installation``."""
        return (str(self.python), self.described.starter, module)


def read(directory: str, root: Path) -> Environment:
    """Ask the environment's Python what it has. ``root``: of the site's installations. Nothing is written.

    Raises ``MissingPrecondition`` if there is no Python that works, or an old one, and ``InvalidInput`` for a path that
    PATH cannot hold.
    """
    place = Path(os.path.abspath(Path(directory).expanduser()))  # noqa: PTH100 - a link stays the user's word
    if unusable := [character for character in UNUSABLE if character in str(place)]:
        raise InvalidInput(f"environment {str(place)!r}: its path holds {unusable[0]!r}", hint="rename the directory")
    python = place / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise MissingPrecondition(
            f"{place} is not a Python environment: bin/python not found",
            hint=f"python3 -m venv {sh(str(place))}, or the directory of one (conda env list)",
        )
    answer = _ask(python)
    if tuple(map(int, answer["version"].split(".")[:2])) < _OLDEST:
        raise MissingPrecondition(
            f"environment {place} has Python {answer['version']}; hidl requires 3.10 or newer",
            hint="make it with a newer Python",
        )
    kind = _kind(place)
    packages = {**_of_conda(place), **answer["packages"]}
    places = {name: [Path(each) for each in found] for name, found in answer["places"].items()}
    abis = {
        "mpi4py": [content.of_mpi4py(each) for each in places.get("mpi4py", ())],
        "horovod": [content.of_modules(each.glob("**/mpi_lib*.so")) for each in places.get("horovod", ())],
    }
    mpi = _own_mpi(place, packages)
    support = root / "environments" / _id(place, kind)
    described = Described(
        directory=str(place),
        kind=kind,
        python=answer["version"],
        packages=dict(sorted(packages.items())),
        linked={name: tuple(sorted(frozenset().union(*found))) for name, found in abis.items() if found},
        support=str(support),
        mpi=mpi[0] if mpi else None,
    )
    listed = json.dumps([described.python, described.packages])
    manifest: dict[str, Any] = {
        "lock": {"digest": hashlib.sha256(listed.encode()).hexdigest()},
        "packages": described.packages,
        "provider": "wheels" if "mpich" in answer["packages"] else kind,
    }
    if mpi:
        manifest["mpi"] = {"family": mpi[0], "version": mpi[1]}
    return Environment(place, manifest, described)


def prepare_support(described: Described) -> None:
    """Write what jobs in the environment need, unless it is there."""
    support = Path(described.support)
    if (support / "activate.sh").is_file():
        return
    support.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=support.parent, prefix=".new-") as directory:
        new = Path(directory, support.name)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(own_wheel.workloads().source, new / _PACKAGE, ignore=ignored)
        (new / "activate.sh").write_text(_activation(Path(described.directory), described.kind), encoding="utf-8")
        new.chmod(0o755)
        try:
            new.rename(support)
        except OSError:
            if not (support / "activate.sh").is_file():  # else another hidl was faster
                raise


def _ask(python: Path) -> dict[str, Any]:
    script = Path(__file__).parents[2] / _PACKAGE / "describe_python.py"
    try:
        answer: dict[str, Any] = json.loads(process.run([python, "-I", script], timeout=_SECONDS).stdout)
    except ProcessFailed as failure:
        said = failure.output.strip().splitlines()[-1:] or [failure.message]
        raise MissingPrecondition(
            f"{python} does not work: {said[0]}", hint="make the environment again, with Python 3.10 or newer"
        ) from failure
    except ValueError as error:
        raise MissingPrecondition(
            f"{python} is not a Python interpreter: {error}", hint="name the directory of a venv or conda environment"
        ) from error
    return answer


def _kind(place: Path) -> Kind:
    if (place / "pyvenv.cfg").is_file():
        return "venv"
    return "conda" if (place / "conda-meta").is_dir() else "prefix"


def _of_conda(place: Path) -> dict[str, str]:
    """The packages of a conda environment by the names of their records, such as ``mpich-4.2.3-h1a2b_0.json``."""
    records = (file.stem.rsplit("-", 2) for file in (place / "conda-meta").glob("*-*-*.json"))
    return {name: version for name, version, _ in records}


def _own_mpi(place: Path, packages: Mapping[str, str]) -> tuple[Family, str | None] | None:
    """The MPI library in the environment; None without one that can start ranks."""
    abi = next((abi for name, abi in SONAMES.items() if (place / "lib" / name).exists()), None)
    if abi is None or not os.access(place / "bin" / "mpiexec", os.X_OK):
        return None
    if abi == "openmpi":
        return "openmpi", packages.get("openmpi")
    if intel := packages.get("impi-rt") or packages.get("impi_rt"):
        return "intel-mpi", intel
    return "mpich", packages.get("mpich")


def _activation(place: Path, kind: Kind) -> str:
    from hidl_cli.templates import render_script  # imports Jinja2, which only a run needs

    name = Described(str(place), kind, "", {}, {}, "").name
    of_kind = {
        "venv": {"VIRTUAL_ENV": str(place)},
        "conda": {"CONDA_PREFIX": str(place), "CONDA_DEFAULT_ENV": place.name, "CONDA_SHLVL": "1", **_variables(place)},
        "prefix": {},
    }[kind]
    values = {
        "title": f"{kind} environment {place}",
        "bin": str(place / "bin"),
        "variables": {**of_kind, "HIDL_STACK": name},
        "unset": ("PYTHONHOME", *(() if kind == "venv" else ("VIRTUAL_ENV",))),
        "scripts": str(place / "etc" / "conda" / "activate.d") if kind == "conda" else None,
    }
    return render_script("activate_environment.sh.j2", values)


def _variables(place: Path) -> dict[str, str]:
    """What ``conda env config vars set`` keeps."""
    try:
        kept = read_json(place / "conda-meta" / "state").get("env_vars", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return {name: str(value) for name, value in kept.items() if name.isidentifier() and name.isascii()}


def _id(place: Path, kind: Kind) -> str:
    parts = [own_wheel.workloads().digest, _activation(place, kind)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
