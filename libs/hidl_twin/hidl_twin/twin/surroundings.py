"""What users find on a twin's login host and nodes: the site's modules, launchers and variables."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from hidl_cli.documents import read_json, write_json
from hidl_cli.mpi import TRAITS, WHEEL_OVER_PMI2
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_twin.batch.systems import SYSTEMS
from hidl_twin.dress import Dress
from hidl_twin.layout import Layout
from hidl_twin.twin import libraries, modules, of_site, programs

_LMOD = Path("/usr/share/lmod/lmod")
#: Launchers that a site has on PATH, and not in an MPI library's prefix.
_OF_THE_SITE = ("ibrun",)
_FILE = "site/surroundings.json"
_SCHEMA = "hidl.twin-surroundings/1"


def furnish(layout: Layout, dress: Dress, say: Callable[[str], None]) -> None:
    """Create the site's MPI libraries, modules and launchers, and save the variables that lead to them."""
    assert dress.site is not None
    site = load_site(dress.site)
    provided = libraries.provide(site, layout, say)
    tree = modules.write(site, layout, provided)
    bin_ = layout["site"] / "bin"
    bin_.mkdir(exist_ok=True)
    for name in _OF_THE_SITE:
        if name in site.launchers:
            programs.write_launcher(bin_ / name, name)
    _make_gpus(layout["site"] / "gpus", max(host.gpus for host in dress.hosts))
    programs.write_gpu_tools(bin_, _gpus(site, dress))
    default = next((library for library in provided if library.name == site.default_mpi), None)
    loaded = default is not None and not site.mpi[default.name].modules and default.place is None
    paths = [
        *(str(layout[dress.scheduler] / place) for place in _places(dress.scheduler, site)),
        str(bin_),
        *([str(default.prefix / "bin")] if default and loaded else []),
    ]
    document = {
        "schema": _SCHEMA,
        "path": paths,
        "variables": {
            "MODULEPATH": str(tree),
            **_lmod(site),
            **_over_pmi2(site),
            **of_site.environment(site.match),
        },
        "grafts": {library.place: str(library.prefix) for library in provided if library.place},
    }
    write_json(layout[_FILE], document)


def surroundings(layout: Layout, dress: Dress, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that lead users to the scheduler, and on a twin to the site's modules and programs."""
    system = SYSTEMS.get(dress.scheduler)
    found = {system.variable: str(system.place(layout[system.name]))} if system else {}
    if dress.scheduler == "slurm":
        found["SLURM_CONF"] = str(layout.conf)
    if dress.site is None:
        return found
    document = read_json(layout[_FILE])
    kept = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part not in document["path"]]
    return {**found, "PATH": os.pathsep.join([*document["path"], *kept]), **document["variables"]}


def _places(scheduler: str, site: Site) -> list[str]:
    """Directories with the commands of a stand-in scheduler."""
    system = SYSTEMS.get(scheduler)
    if system is None:
        return []
    return ["bin", *([system.launcher_place] if system.launcher in site.launchers else [])]


def grafts(layout: Layout) -> dict[str, str]:
    """Mounts on the nodes at the site's own paths: path -> directory."""
    try:
        return {str(place): str(source) for place, source in read_json(layout[_FILE])["grafts"].items()}
    except (OSError, ValueError, KeyError):
        return {}


def _over_pmi2(site: Site) -> dict[str, str]:
    """Variables that MPICH from wheels, which stands in for its derivatives, requires over Slurm's PMI-2."""
    derivatives = [library for library in site.mpi.values() if TRAITS[library.family].abi == "mpich"]
    return WHEEL_OVER_PMI2 if derivatives else {}


def _make_gpus(directory: Path, count: int) -> None:
    """Create the device files by which Slurm counts GPUs, each a /dev/null."""
    directory.mkdir(exist_ok=True)
    for number in range(count):
        file = directory / f"gpu{number}"
        if not file.is_char_device():
            os.mknod(file, 0o666 | stat.S_IFCHR, Path("/dev/null").stat().st_rdev)


def _gpus(site: Site, dress: Dress) -> dict[str, programs.GpusOfHost]:
    """The GPUs of each host that has some, by its full name."""
    found = {}
    for host in dress.hosts:
        if host.gpus:
            node = site.node_types.get(host.kind)
            memory = node.gpu_memory_gib if node else None
            model = host.gpu_model or "NVIDIA GPU"
            found[host.full_name] = programs.GpusOfHost(host.gpus, model, int(memory * 1024) if memory else None)
    return found


def _lmod(site: Site) -> dict[str, str]:
    """Variables of Lmod's own profile. ibrun recognizes the MPI library by TACC's site name."""
    return {
        **({"LMOD_SITE_NAME": "TACC"} if "ibrun" in site.launchers else {}),
        "LMOD_CMD": str(_LMOD / "libexec" / "lmod"),
        "LMOD_PKG": str(_LMOD),
        "LMOD_DIR": str(_LMOD / "libexec"),
        "MODULESHOME": str(_LMOD),
        "BASH_ENV": str(_LMOD / "init" / "bash"),
        "LMOD_ALLOW_ROOT_USE": "yes",
    }
