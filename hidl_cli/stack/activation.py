"""Activation scripts and modulefiles for installations, and support for user environments that replace a stack.

Modulefiles are written in Tcl, the only language that both Environment Modules and Lmod support.
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
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli import process
from hidl_cli.documents import read_json
from hidl_cli.errors import InvalidInput, MissingPrecondition, ProcessFailed
from hidl_cli.mpi import SONAMES, TRAITS, Abi, Family
from hidl_cli.quoting import comment, sh
from hidl_cli.stack import content, own_wheel
from hidl_cli.stack.installation import UNSET, UNUSABLE, Installation, variables
from hidl_cli.templates import render_modulefile, render_script

if TYPE_CHECKING:
    from hidl_cli.stack.plan import InstallPlan


@dataclass(frozen=True)
class Activation:
    """The activation script and the modulefile of an installation."""

    script: str
    modulefile: str


def render(plan: InstallPlan) -> Activation:
    """Render the activation script and the modulefile without writing them."""
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


# The user's own environments (venv, conda or any prefix with a Python), used in place of a stack.


EnvironmentKind = Literal["venv", "conda", "prefix"]

_OLDEST = (3, 10)  # oldest Python version that hidl's modules support
_SECONDS = 60.0
_PACKAGE = "hidl_workloads"


@dataclass(frozen=True)
class UserEnvironment:
    """A user's own Python environment, as described in ``plan.json``.

    Attributes:
        directory: Path of the environment.
        kind: Kind of the environment.
        python: Version of Python.
        packages: Versions of Python and conda packages by name.
        linked: MPI ABIs that mpi4py and Horovod were built for.
        support: Directory with hidl's files for jobs in the environment.
        mpi: Family of the environment's own MPI library, or None if it has none.
        mpi_stack: Stack that provides the MPI library, or None if the environment or the site provides it.
    """

    directory: str
    kind: EnvironmentKind
    python: str
    packages: Mapping[str, str]
    linked: Mapping[str, tuple[str, ...]]
    support: str
    mpi: Family | None = None
    mpi_stack: str | None = None

    @property
    def name(self) -> str:
        """The name that runs record instead of a stack name."""
        return f"env:{Path(self.directory).name}"

    @property
    def has_mpi4py(self) -> bool:
        """Return True if mpi4py is installed."""
        return "mpi4py" in self.packages

    @property
    def starter(self) -> str:
        """The script that runs a hidl module in the environment."""
        return str(Path(self.support, _PACKAGE, "start.py"))


@dataclass(frozen=True)
class EnvironmentInstallation(Installation):
    """A user's own environment, used in place of an installed stack."""

    described: UserEnvironment

    @property
    def activate(self) -> Path:
        """The activation script for jobs."""
        return Path(self.described.support, "activate.sh")

    @property
    def abi(self) -> Abi:
        """The ABI of the environment's own MPI library, or else of its mpi4py (MPICH's if mpi4py supports any ABI)."""
        if self.described.mpi is not None:
            return TRAITS[self.described.mpi].abi
        return "openmpi" if self.described.linked.get("mpi4py") == ("openmpi",) else "mpich"

    def run_module(self, module: str) -> tuple[str, ...]:
        return (str(self.python), self.described.starter, module)


def read(directory: str, root: Path) -> EnvironmentInstallation:
    """Inspect an environment without writing anything. ``root`` is the root of the site's installations.

    Raises ``MissingPrecondition`` if the environment's Python is missing, broken or too old, and ``InvalidInput`` if
    PATH cannot contain the environment's path.
    """
    place = Path(os.path.abspath(Path(directory).expanduser()))  # noqa: PTH100 - keep links as the user wrote them
    if unusable := [character for character in UNUSABLE if character in str(place)]:
        raise InvalidInput(
            f"environment {str(place)!r}: the path contains {unusable[0]!r}", hint="rename the directory"
        )
    python = place / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise MissingPrecondition(
            f"{place} is not a Python environment: bin/python not found",
            hint=f"create one (python3 -m venv {sh(str(place))}), or pass an existing one (conda env list)",
        )
    found = _inspect(python)
    if tuple(map(int, found["version"].split(".")[:2])) < _OLDEST:
        raise MissingPrecondition(
            f"environment {place} has Python {found['version']}; hidl requires 3.10 or newer",
            hint="create it with a newer Python",
        )
    kind = _kind(place)
    packages = {**_conda_packages(place), **found["packages"]}
    places = {name: [Path(each) for each in directories] for name, directories in found["places"].items()}
    abis = {
        "mpi4py": [content.mpi4py_abis(each) for each in places.get("mpi4py", ())],
        "horovod": [content.linked_abis(each.glob("**/mpi_lib*.so")) for each in places.get("horovod", ())],
    }
    mpi = _own_mpi(place, packages)
    support = root / "environments" / _id(place, kind)
    described = UserEnvironment(
        directory=str(place),
        kind=kind,
        python=found["version"],
        packages=dict(sorted(packages.items())),
        linked={name: tuple(sorted(frozenset().union(*each))) for name, each in abis.items() if each},
        support=str(support),
        mpi=mpi[0] if mpi else None,
    )
    listed = json.dumps([described.python, described.packages])
    manifest: dict[str, Any] = {
        "lock": {"digest": hashlib.sha256(listed.encode()).hexdigest()},
        "packages": described.packages,
        "provider": "wheels" if "mpich" in found["packages"] else kind,
    }
    if mpi:
        manifest["mpi"] = {"family": mpi[0], "version": mpi[1]}
    return EnvironmentInstallation(place, manifest, described)


def prepare_support(described: UserEnvironment) -> None:
    """Write the files that jobs need to use the environment, unless they exist."""
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
            if not (support / "activate.sh").is_file():  # otherwise another process was faster
                raise


def _inspect(python: Path) -> dict[str, Any]:
    script = Path(__file__).parents[2] / _PACKAGE / "describe_python.py"
    try:
        found: dict[str, Any] = json.loads(process.run([python, "-I", script], timeout=_SECONDS).stdout)
    except ProcessFailed as failure:
        reason = failure.output.strip().splitlines()[-1:] or [failure.message]
        raise MissingPrecondition(
            f"{python} does not work: {reason[0]}", hint="recreate the environment with Python 3.10 or newer"
        ) from failure
    except ValueError as error:
        raise MissingPrecondition(
            f"{python} is not a Python interpreter: {error}", hint="pass the directory of a venv or conda environment"
        ) from error
    return found


def _kind(place: Path) -> EnvironmentKind:
    if (place / "pyvenv.cfg").is_file():
        return "venv"
    return "conda" if (place / "conda-meta").is_dir() else "prefix"


def _conda_packages(place: Path) -> dict[str, str]:
    """Return a conda environment's packages, read from the names of its records (``mpich-4.2.3-h1a2b_0.json``)."""
    records = (file.stem.rsplit("-", 2) for file in (place / "conda-meta").glob("*-*-*.json"))
    return {name: version for name, version, _ in records}


def _own_mpi(place: Path, packages: Mapping[str, str]) -> tuple[Family, str | None] | None:
    """Return the family and version of the environment's MPI library, or None if it lacks the library or mpiexec."""
    abi = next((abi for name, abi in SONAMES.items() if (place / "lib" / name).exists()), None)
    if abi is None or not os.access(place / "bin" / "mpiexec", os.X_OK):
        return None
    if abi == "openmpi":
        return "openmpi", packages.get("openmpi")
    if intel := packages.get("impi-rt") or packages.get("impi_rt"):
        return "intel-mpi", intel
    return "mpich", packages.get("mpich")


def _activation(place: Path, kind: EnvironmentKind) -> str:
    name = UserEnvironment(str(place), kind, "", {}, {}, "").name
    kind_variables = {
        "venv": {"VIRTUAL_ENV": str(place)},
        "conda": {
            "CONDA_PREFIX": str(place),
            "CONDA_DEFAULT_ENV": place.name,
            "CONDA_SHLVL": "1",
            **_conda_variables(place),
        },
        "prefix": {},
    }[kind]
    values = {
        "title": f"{kind} environment {place}",
        "bin": str(place / "bin"),
        "variables": {**kind_variables, "HIDL_STACK": name},
        "unset": ("PYTHONHOME", *(() if kind == "venv" else ("VIRTUAL_ENV",))),
        "scripts": str(place / "etc" / "conda" / "activate.d") if kind == "conda" else None,
    }
    return render_script("activate_environment.sh.j2", values)


def _conda_variables(place: Path) -> dict[str, str]:
    """Return the variables set by ``conda env config vars set``."""
    try:
        kept = read_json(place / "conda-meta" / "state").get("env_vars", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return {name: str(value) for name, value in kept.items() if name.isidentifier() and name.isascii()}


def _id(place: Path, kind: EnvironmentKind) -> str:
    parts = [own_wheel.workloads().digest, _activation(place, kind)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
