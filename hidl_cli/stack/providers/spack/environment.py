"""The environment of a stack on a site (``spack.yaml``), and the prefix that Spack fills.

The same site, stack and directories always produce the same environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import documents, process
from hidl_cli.errors import BuildFailed, InvalidInput, MissingPrecondition, ProcessFailed
from hidl_cli.mpi import TRAITS, Family
from hidl_cli.site.probes.software import PROGRAMS
from hidl_cli.site.schema import OCI, BuildCache, Compiler, External, Mpi, Site
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers.spack import microarchitecture
from hidl_cli.stack.providers.spack.host import COMPILERS_ARE_PACKAGES, Instance, Places, padded, padded_tree
from hidl_cli.stack.providers.spack.lock import SpackLock
from hidl_cli.stack.providers.venv import write_wrappers

if TYPE_CHECKING:
    from hidl_cli.batch_systems import BuildJob
    from hidl_cli.stack.schema import Stack


@dataclass(frozen=True)
class Chosen:
    """Package settings, including those of the MPI library.

    ``version`` is the version of an MPI library that is already installed, or None. ``gaps`` lists facts that the site
    file lacks.
    """

    packages: Mapping[str, Any]
    mpi: Family
    version: str | None
    external_mpi: bool
    gaps: tuple[str, ...] = field(default=())


def choose(site: Site, stack: Stack) -> Chosen:
    """Return the package settings for a stack on a site."""
    gaps: list[str] = [
        f"the processor of node type {name} is unknown, and may not execute code that is built for the others"
        for name in microarchitecture.unknown_nodes(site)
    ]
    packages: dict[str, Any] = {"all": _for_all(site)}
    for name, external in site.externals.items():
        entry = _external(name, external, gaps)
        if entry:
            packages[name] = entry
    for entry_name, entry in _compilers(site, gaps).items():
        packages[entry_name] = entry
    family, version, is_external = _mpi(site, stack, packages, gaps)
    for constraints in (stack.spack.require if stack.spack else {}, site.spack.require):
        for name, wanted in constraints.items():
            required = packages.setdefault(name, {}).setdefault("require", [])
            required.extend(one for one in wanted if one not in required)
    return Chosen(packages, family, version, is_external, tuple(gaps))


def compilers_of_old(site: Site) -> list[dict[str, Any]]:
    """Return the compilers in the format of ``compilers:`` in Spack 0.23, for any target."""
    found = []
    for name in _order(site):
        compiler = site.compilers[name]
        if compiler.version is None:
            continue
        c, cxx, fortran = _programs(compiler)
        found.append(
            {
                "compiler": {
                    "spec": f"{_OLD_NAMES.get(compiler.package, compiler.package)}@={compiler.version}",
                    "paths": {"cc": c, "cxx": cxx, "f77": fortran, "fc": fortran},
                    "operating_system": "OPERATING_SYSTEM",
                    "target": "any",
                    "modules": list(compiler.modules),
                }
            }
        )
    return found


_OLD_NAMES = {"llvm": "clang", "intel-oneapi-compilers": "oneapi", "intel-oneapi-compilers-classic": "intel"}


def _for_all(site: Site) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if target := microarchitecture.choose(site):
        chosen["require"] = [f"target={target}"]
    return chosen | {"variants": _gpu_variants(site)}


def _gpu_variants(site: Site) -> list[str]:
    """Return the variants for the GPUs of the nodes that stacks are installed for."""
    node = site.node_of_stacks()
    # If the number of GPUs is unknown, their architecture shows that the nodes have some.
    arch = node.gpu_arch if node.gpu_arch and node.gpus != 0 else ""
    if arch.startswith("sm_"):
        return ["+cuda", f"cuda_arch={arch.removeprefix('sm_')}", "~rocm"]
    if arch.startswith("gfx"):
        return ["~cuda", "+rocm", f"amdgpu_target={arch}"]
    return ["~cuda", "~rocm"]


def _variants_of_mpi(site: Site, library: Mpi) -> str:
    """Return the variants of the site's MPI library: those in the site file, or else its GPU variants, if any.

    Spack links Cray MPICH's GPU transport layer (GTL) only with ``+cuda`` or ``+rocm`` and the GPUs' architecture.
    """
    if library.variants or library.family not in _FOR_GPUS:
        return library.variants
    chosen = _gpu_variants(site)
    if not _FOR_GPUS[library.family]:
        chosen = [variant for variant in chosen if "=" not in variant]
    return " ".join(chosen) if any(variant.startswith("+") for variant in chosen) else ""


#: MPI libraries that support GPUs, and whether their packages have GPU architecture variants.
_FOR_GPUS: Mapping[Family, bool] = {"cray-mpich": True, "mvapich-plus": True, "mvapich2-gdr": False}


def _external(name: str, external: External, gaps: list[str]) -> dict[str, Any] | None:
    if external.version is None or not (external.prefix or external.modules):
        what = "version" if external.version is None else "prefix"
        gaps.append(f"the {what} of {name} is unknown")
        return None
    spec = f"{name}@{external.version} {external.variants}".strip()
    return {"externals": [_placed({"spec": spec}, external)], "buildable": external.buildable}


def _placed(entry: dict[str, Any], where: External | Compiler | Mpi) -> dict[str, Any]:
    """Add the prefix and modules of ``where`` to an entry, and return the entry."""
    if where.prefix:
        entry["prefix"] = where.prefix
    if where.modules:
        entry["modules"] = list(where.modules)
    return entry


def _order(site: Site) -> list[str]:
    """Return the names of the compilers, starting with the default one."""
    return sorted(site.compilers, key=lambda name: name != site.default_compiler)


def _compilers(site: Site, gaps: list[str]) -> dict[str, Any]:
    """Return the compilers as packages. Several versions of a compiler become several externals."""
    packages: dict[str, Any] = {}
    for name in _order(site):
        compiler = site.compilers[name]
        if compiler.version is None:
            gaps.append(f"the version of compiler {name} is unknown")
            continue
        c, cxx, fortran = _programs(compiler)
        programs = {"c": c, "cxx": cxx, **({"fortran": fortran} if fortran else {})}
        spec = f"{compiler.package}@{compiler.version}"
        if compiler.package == "gcc":
            spec += f" languages='{','.join({'cxx': 'c++'}.get(language, language) for language in programs)}'"
        entry = _placed({"spec": spec}, compiler)
        entry["extra_attributes"] = {"compilers": programs}
        packages.setdefault(compiler.package, {"externals": [], "buildable": False})["externals"].append(entry)
    if not site.compilers:
        gaps.append("the compilers are unknown")
    elif site.default_compiler and packages:
        default = site.compilers[site.default_compiler]
        if default.version is not None:
            for language in ("c", "cxx", "fortran") if default.fortran else ("c", "cxx"):
                # A package that conflicts with this version may use another version of the same compiler.
                version = f"{default.package}@{default.version}"
                packages[language] = {"require": [default.package], "prefer": [version]}
            if not default.fortran:
                gaps.append(
                    f"compiler {site.default_compiler} has no `fortran`: packages that require it cannot be built"
                )
    return packages


def _programs(compiler: Compiler) -> tuple[str, str, str | None]:
    """Return the paths of the C, C++ and Fortran compilers, or only their names if modules put them on PATH."""
    c, cxx, fortran = PROGRAMS.get(compiler.package, ("cc", "c++", "fc"))

    def placed(given: str | None, usual: str) -> str:
        name = given or usual
        return f"{compiler.prefix}/bin/{name}" if compiler.prefix and "/" not in name else name

    with_fortran = compiler.fortran is not None
    return placed(compiler.c, c), placed(compiler.cxx, cxx), placed(compiler.fortran, fortran) if with_fortran else None


def _mpi(site: Site, stack: Stack, packages: dict[str, Any], gaps: list[str]) -> tuple[Family, str | None, bool]:
    """Choose the site's default MPI library, or else the stack's, and determine whether Spack builds it."""
    name = site.default_mpi
    mine = site.mpi.get(name) if name else None
    family: Family = mine.family if mine else stack.mpi
    package = TRAITS[family].spack
    entry: dict[str, Any] = dict(packages.get(package, {}))
    usable = mine is not None and mine.version is not None and _is_placed(site, mine)
    if mine is not None and usable:
        spec = f"{package}@{mine.version} {_variants_of_mpi(site, mine)}".strip()
        entry |= {"externals": [_placed({"spec": spec}, mine)], "buildable": False}
        packages["mpi"] = {"require": [f"{package}@{mine.version}"], "buildable": False}
    else:
        if TRAITS[family].of_site_only or (mine is not None and not TRAITS[family].is_binary):
            unknown = "version" if mine is None or mine.version is None else "prefix"
            gaps.append(f"the {unknown} of MPI library {name} is unknown")
        version = f"@{mine.version}" if mine is not None and mine.version is not None else ""
        packages["mpi"] = {"require": [package + version]}
        if family == "mvapich2-gdr" and _launchers(site, mine) == ["jsrun"]:
            entry["require"] = ["process_managers=jsrun", "pmi_version=pmi4pmix"]
        if TRAITS[family].of_site_only:
            entry["buildable"] = False
    if entry:
        packages[package] = entry
    return family, mine.version if mine and usable else None, usable


def _is_placed(site: Site, library: Mpi) -> bool:
    """Return whether the site file contains the library's prefix, or a module that provides only this library."""
    of_compilers = {module for compiler in site.compilers.values() for module in compiler.modules}
    of_externals = {module for external in site.externals.values() for module in external.modules}
    return bool(library.prefix or set(library.modules) - of_compilers - of_externals)


def _launchers(site: Site, library: Mpi | None) -> list[str]:
    return list(library.launchers if library and library.launchers else site.launchers)


# Files that Spack reads in addition to its environment: package repositories and its own configuration files.


#: The file that holds the commit in a copy of a repository without its history.
COMMIT = "COMMIT"
UNKNOWN = "unknown"
#: The key for Spack's own configuration files in the result of ``states``.
CONFIGURATION = "configuration"


def states(where: Places, spack: Path) -> dict[str, str]:
    """Return the state of each package repository and of the configuration files in the Spack instance at ``spack``.

    A state is a commit, followed by a digest if the clone has local changes, or the digest of the files themselves.
    """
    found = {
        "builtin": PACKAGES_TAG if where.builtin is None else commit(where.builtin) + local_changes(where.builtin),
        "hidl": digest(where.own, where.own.rglob("*")) if where.own.is_dir() else "none",
    }
    if files := configuration_files(spack):
        found[CONFIGURATION] = digest(spack, files)
    return found


def commit(directory: Path) -> str:
    """Return the commit of the clone that contains ``directory``, without running git."""
    for place in (directory, *directory.parents):
        if (place / COMMIT).is_file():
            return (place / COMMIT).read_text(encoding="utf-8").strip()
        if (place / ".git").exists():
            return _head(place / ".git")
    return UNKNOWN


def local_changes(directory: Path) -> str:
    """Return ``+`` and the digest of the files that differ from the clone's commit (empty if none does).

    The result is also empty if git is missing, or if git refuses to read the clone because it belongs to another user.
    """
    if any((place / COMMIT).is_file() for place in (directory, *directory.parents)):
        return ""
    git = ("git", "-C", directory, "-c", "core.fsmonitor=false")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    listing = ("status", "--porcelain", "-z", "--no-renames", "-uall", "--", ".")
    try:
        changed = process.run((*git, *listing), env=environment).stdout
        root = process.run((*git, "rev-parse", "--show-toplevel"), env=environment).stdout.strip()
    except ProcessFailed:
        return ""
    files = [Path(root, line[3:]) for line in changed.split("\0") if line]
    return f"+{digest(Path(root), files)}" if files else ""


def configuration_files(spack: Path) -> list[Path]:
    """Return the configuration files in a Spack instance's own ``etc/spack`` that are not part of Spack."""
    place = spack / "etc" / "spack"
    files = (file for file in place.rglob("*.yaml") if "defaults" not in file.relative_to(place).parts)
    return sorted(file for file in files if file != place / "include.yaml" or _includes_more(file))


def _includes_more(file: Path) -> bool:
    """Return whether an ``include.yaml`` names scopes that are not in Spack 1.2's own file."""
    import yaml

    try:
        entries = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("include", [])
        return any(not isinstance(entry, dict) or entry.get("name") not in _SCOPES for entry in entries)
    except (OSError, ValueError, AttributeError, yaml.YAMLError):
        return True


_SCOPES = ("user", "site", "system", "defaults")


def digest(directory: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of files and of their paths relative to ``directory``."""
    total = hashlib.sha256()
    for file in sorted(files):
        if "__pycache__" not in file.parts and not file.is_dir():
            content = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "removed"
            total.update(f"{file.relative_to(directory).as_posix()}\0{content}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _head(git: Path) -> str:
    """Return the commit of HEAD. ``git`` is a directory, or the file in a work tree that refers to it."""
    if git.is_file():
        git = (git.parent / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()).resolve()
    try:
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        common = git / (git / "commondir").read_text(encoding="utf-8").strip() if (git / "commondir").is_file() else git
        if (common / name).is_file():
            return (common / name).read_text(encoding="utf-8").strip()
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return UNKNOWN
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), UNKNOWN)


#: The release of spack-packages that is cloned if the user has none; hidl is tested with it.
PACKAGES_URL = "https://github.com/spack/spack-packages.git"
PACKAGES_TAG = "v2026.03.0"

#: Settings that do not change what Spack builds.
_NO_INPUT = ("view", "repos", "mirrors", "modules", "include", "upstreams")
_NO_CONFIG_INPUT = (
    "install_tree",
    "source_cache",
    "misc_cache",
    "build_stage",
    "build_jobs",
    "concurrent_packages",
    "environments_root",
    "binary_index_ttl",
)


@dataclass(frozen=True)
class Environment:
    """The content of ``spack.yaml`` (``document``), with messages for the user in ``warnings`` and ``gaps``.

    ``mpi`` is the family of the MPI library, and ``mpi_version`` is its version if it is already installed on the site.
    ``lacks_mpi`` is None, or the reason why Spack cannot build a library that the site file does not locate.
    """

    document: Mapping[str, Any]
    mpi: Family
    mpi_version: str | None
    external_mpi: bool
    warnings: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    lacks_mpi: str | None = None

    @property
    def text(self) -> str:
        """The text of ``spack.yaml``."""
        head = "# Written by hidl from the stack's recipe and the site file; change those instead.\n"
        lacking = [f"the site file does not locate {self.mpi}, and {self.lacks_mpi}"] if self.lacks_mpi else []
        head += "".join(f"# Missing: {gap}.\n" for gap in (*self.gaps, *lacking))
        return head + plain_yaml(self.document)

    def staged_in(self, stage: Path) -> Environment:
        """Return the environment with another directory for builds."""
        spack = self.document["spack"]
        config = spack["config"] | {"build_stage": [str(stage)]}
        return replace(self, document={"spack": spack | {"config": config}})

    @property
    def tree(self) -> Path:
        """The directory of the packages that Spack installs, and of their index."""
        return install_tree(self.document)

    @property
    def inputs(self) -> str:
        """The SHA-256 of the settings that affect what is built. Directories are not included."""
        spack = self.document["spack"]
        config = {key: value for key, value in spack["config"].items() if key not in _NO_CONFIG_INPUT}
        deciding = {key: value for key, value in spack.items() if key not in _NO_INPUT} | {"config": config}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def install_tree(document: Mapping[str, Any]) -> Path:
    """Return the directory that Spack installs the packages of a ``spack.yaml`` into."""
    settings = document["spack"]["config"]["install_tree"]
    root, length = Path(settings["root"]), settings.get("padded_length") or 0
    return padded_tree(root) if length is True else padded(root, length)


def environment(
    site: Site,
    stack: Stack,
    where: Places,
    *,
    view: Path,
    release: tuple[int, int],
    system: str = "linux",
) -> Environment:
    """Return the environment of a stack on a site.

    Args:
        site: The site.
        stack: The stack.
        where: The directories that Spack uses.
        view: The directory of the view.
        release: The Spack release, such as (1, 2).
        system: The operating system as named by Spack 0.23, such as debian12.

    Raises:
        InvalidInput: The stack has no specs for Spack.
    """
    if stack.spack is None or not stack.spack.specs:
        raise InvalidInput(
            f"stack {stack.name} has no specs for Spack",
            hint="add `spack: {specs: [...]}` to its file, or use another provider, such as --provider wheels",
        )
    chosen = choose(site, stack)
    compilers_are_packages = release >= COMPILERS_ARE_PACKAGES
    known = dict(chosen.packages)
    spack: dict[str, Any] = {
        "specs": roots(site, stack),
        "view": {"default": {"root": str(view)}},
        "concretizer": _concretizer(site, release),
        "packages": known,
        "config": _config(site, where),
        "repos": _repositories(where) if compilers_are_packages else _old_repositories(where),
    }
    if not compilers_are_packages:
        for name in (*{compiler.package for compiler in site.compilers.values()}, "c", "cxx", "fortran"):
            known.pop(name, None)
        compilers = compilers_of_old(site)
        for entry in compilers:
            entry["compiler"]["operating_system"] = system
        spack["compilers"] = compilers
    warnings = []
    if stack.spack.deprecated:
        spack["config"]["deprecated"] = True
        warnings.append(f"deprecated versions are allowed: {stack.spack.deprecated}")
    mirrors = _mirrors(site, where)
    if mirrors:
        spack["mirrors"] = mirrors
    spack["modules"] = _modules(site, where)
    if site.spack.upstreams:
        spack["upstreams"] = {
            name: {"install_tree": str(padded_tree(Path(_expand(place))))}
            for name, place in site.spack.upstreams.items()
        }
    if site.spack.include:
        spack = {"include": [_expand(place) for place in site.spack.include], **spack}
    spack = _merge(spack, site.spack.config)
    centre_knows_more = bool(site.spack.include or "packages" in site.spack.config)
    return Environment(
        {"spack": spack},
        mpi=chosen.mpi,
        mpi_version=chosen.version,
        external_mpi=chosen.external_mpi,
        warnings=tuple(warnings),
        gaps=chosen.gaps,
        lacks_mpi=None
        if chosen.external_mpi or centre_knows_more
        else _unbuildable(chosen.mpi, stack.spack.deprecated, release),
    )


def _merge(generated: Mapping[str, Any], changes: Mapping[Any, Any]) -> dict[str, Any]:
    """Merge ``changes`` into ``generated``, key by key. Lists and scalars are replaced."""
    merged = dict(generated)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _expand(place: str) -> str:
    """Expand ``~`` and variables in a path."""
    return str(Path(os.path.expandvars(place)).expanduser())


def included_files(site: Site) -> dict[str, str]:
    """Return the digest of each file or directory in the site's ``spack.include``, by path.

    Raises:
        MissingPrecondition: A file or directory does not exist.
    """
    found = {}
    for name in site.spack.include:
        place = Path(_expand(name))
        if not place.exists():
            raise MissingPrecondition(
                f"{place}, which is listed in `spack.include` of site {site.name}, was not found",
                hint="correct the site file",
            )
        files = place.glob("*.yaml") if place.is_dir() else (place,)
        found[f"include {name}"] = digest(place if place.is_dir() else place.parent, files)
    return found


def roots(site: Site, stack: Stack) -> list[str]:
    """Return the specs that Spack builds: those in the stack, except for packages that the site installs as wheels."""
    if stack.spack is None:
        return []
    return [spec for spec in stack.spack.specs if not (site.spack.wheels and name_of(spec) in stack.spack.wheels)]


def _unbuildable(mpi: Family, admitted: str | None, release: tuple[int, int]) -> str | None:
    """Return why Spack cannot build an MPI library, or None if it can.

    ``admitted`` is the reason why the stack allows deprecated versions.
    """
    if TRAITS[mpi].of_site_only:
        return "Spack cannot build it"
    if TRAITS[mpi].is_deprecated and release >= COMPILERS_ARE_PACKAGES and not admitted:
        return "all its versions are deprecated in Spack"
    return None


def name_of(spec: str) -> str:
    """Return the name of the package in a spec."""
    return re.split(r"[^a-z0-9_.-]", spec, maxsplit=1)[0]


def _config(site: Site, where: Places) -> dict[str, Any]:
    padded = {"padded_length": site.spack.padded_length} if site.spack.padded_length else {}
    config: dict[str, Any] = {
        "install_tree": {"root": str(where.store), **padded},
        "source_cache": str(where.sources),
        "misc_cache": str(where.misc),
        "build_stage": [str(where.stage)],
        "db_lock_timeout": 60,
    }
    if site.spack.build_caches:
        config["binary_index_ttl"] = 0  # Spack reads the indexes every time, instead of every ten minutes
    jobs = site.spack.jobs
    if jobs is None and site.spack.build_on == "allocation":
        jobs = site.node_type(site.spack.partition).cores  # otherwise Spack uses at most 16 cores of a node
    if jobs:
        config["build_jobs"] = jobs
    if site.spack.concurrent_packages:
        config["concurrent_packages"] = site.spack.concurrent_packages
    return config


def _concretizer(site: Site, release: tuple[int, int]) -> dict[str, Any]:
    """Return settings that resolve one consistent set of packages.

    By default, the result depends only on the recipes, so it is the same everywhere. The required target may be newer
    than the processor of a login node or a build host, so targets are not restricted to those that the host supports.
    Static analysis excludes everything that contradicts the requirements before the search, which then takes a fraction
    of the time.
    """
    settings: dict[str, Any] = {"unify": True, "reuse": site.spack.reuse, "targets": {"host_compatible": False}}
    return settings | ({"static_analysis": True} if release >= COMPILERS_ARE_PACKAGES else {})


def _repositories(where: Places) -> dict[str, Any]:
    """Return hidl's package repository and Spack's, which is the user's clone or one that Spack makes itself."""
    builtin: Any = str(where.builtin)
    if where.builtin is None:
        builtin = {"git": PACKAGES_URL, "tag": PACKAGES_TAG, "destination": str(where.clone)}
    return {"hidl": str(where.own), "builtin": builtin}


def _old_repositories(where: Places) -> list[str]:
    """Return the repositories for Spack 0.23, which has packages built in and cannot read hidl's (package API v2)."""
    return [str(where.builtin)] if where.builtin else []


def _mirrors(site: Site, where: Places) -> dict[str, Any]:
    """Return the offline mirror, the site's mirrors and its build caches."""
    mirrors: dict[str, Any] = {}
    if where.mirror is not None:
        mirrors["brought"] = {"url": (where.mirror / "sources").as_uri(), "source": True, "binary": False}
    for name, url in site.spack.mirrors.items():
        mirrors[name] = {"url": url, "source": True, "binary": False}
    for name in site.spack.build_caches:
        known = cache_of(site, name)
        mirror = {"url": known.url, "source": False, "binary": True, "signed": known.signed}
        if known.user:
            mirror["access_pair"] = {"id": known.user, "secret_variable": known.password_variable}
        mirrors[mirror_name(name)] = mirror
    return mirrors


def mirror_name(cache: str) -> str:
    """Return Spack's name for a build cache. The suffix avoids the name of a source mirror in the same site file."""
    return f"{cache}-binaries"


def cache_of(site: Site, name: str) -> BuildCache:
    """Return the site's build cache ``name`` or, if there is none of that name, the cache at the URL or path ``name``.

    A cache in an OCI registry is unsigned: Spack neither signs its packages nor verifies signatures there.
    """
    known = site.spack.build_caches.get(name, name)
    cache = BuildCache(url=known) if isinstance(known, str) else known
    if cache.url.startswith(("/", "~", "$")):
        place = Path(os.path.expandvars(cache.url)).expanduser()
        return cache.model_copy(update={"url": place.absolute().as_uri()})
    return cache.model_copy(update={"signed": False}) if cache.url.startswith(OCI) else cache


def _modules(site: Site, where: Places) -> dict[str, Any]:
    """Return the settings that disable Spack's own modulefiles, or enable one module system and hide dependencies."""
    kind = site.spack.modules
    if kind is None:
        return {"default": {"enable": []}}
    settings: dict[str, Any] = {"hide_implicits": True}
    default = site.compilers.get(site.default_compiler or "")
    if kind == "lmod" and default and default.version:
        # Without this, Spack guesses and writes its guess to a configuration file.
        settings["core_compilers"] = [f"{default.package}@{default.version}"]
    return {"default": {"enable": [kind], "roots": {kind: str(where.spack / "modules")}, kind: settings}}


def plain_yaml(document: Mapping[str, Any]) -> str:
    """Return YAML without anchors, which Spack's own reader would keep."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    return yaml.dump(document, Dumper=Plain, sort_keys=False, allow_unicode=True, width=110)


# The part of an installation's plan that concerns Spack.


@dataclass(frozen=True)
class SpackPart:
    """The Spack instance, the environment with its lockfile, and the directories of an installation.

    ``job`` is the job that the packages are built in, or None to build them here. ``jobs`` is the number of parallel
    compile jobs; None leaves it to Spack. ``keys`` are files with public keys of build caches. If ``cache_only`` is
    set, nothing is built from source.
    """

    instance: Instance
    environment: Environment
    lock: SpackLock
    places: Places
    jobs: int | None
    job: BuildJob | None = None
    keys: tuple[str, ...] = ()
    cache_only: bool = False

    @property
    def to_install(self) -> int:
        """The number of packages that Spack installs."""
        return sum(node.external is None for node in self.lock.nodes)

    @property
    def concurrent_packages(self) -> int:
        """The number of packages that Spack builds at once."""
        return int(self.environment.document["spack"]["config"].get("concurrent_packages", 1))

    @property
    def caches(self) -> tuple[str, ...]:
        """The names of the environment's build caches."""
        mirrors = self.environment.document["spack"].get("mirrors", {})
        return tuple(name for name, mirror in mirrors.items() if mirror["binary"])

    @property
    def identity(self) -> str | None:
        return None

    @property
    def environment_text(self) -> str | None:
        return self.environment.text

    def to_json(self) -> Mapping[str, Any]:
        """Return the Spack-specific part of the plan as plain data."""
        return {
            "root": str(self.instance.root),
            "version": self.instance.version,
            "environment": self.environment.document,
            "repositories": dict(self.lock.repositories),
            "hashes": {node.name: node.hash for node in self.lock.nodes},
            "externals": {node.name: node.external for node in self.lock.nodes if node.external},
            "jobs": self.jobs,
        }


def part_of(plan: InstallPlan) -> SpackPart:
    """Return the Spack-specific part of a plan that this provider has made."""
    assert isinstance(plan.part, SpackPart)
    return plan.part


# The prefix: Spack's view, and a virtual environment that exposes it.


ENVIRONMENT = "environment"
VIEW = "view"

# The programs of the OSU Micro-Benchmarks.
_FURTHER = ("libexec/osu-micro-benchmarks",)


def interpreter(plan: InstallPlan) -> Path:
    """Return the Python that Spack's packages are built for: an external interpreter, or the one in the view."""
    node = part_of(plan).lock.node("python")
    inside = plan.prefix / VIEW / "bin" / "python3"
    place = Path(node.external, "bin", "python3") if node and node.external else inside
    if node is None:
        return plan.target.interpreter
    if not place.exists():
        raise BuildFailed(
            f"Python not found: {place}",
            hint="`prefix` of python in the site's `externals` must be the directory that contains bin/python3",
        )
    return place.resolve()


def place_of_mpi(lock: SpackLock, family: Family, store: Path, shared: Mapping[str, Path]) -> Path:
    """Return the directory of the MPI library: the site's prefix, a prefix in an upstream, or a prefix in the store."""
    node = lock.node(TRAITS[family].spack)
    if node is None:
        return store
    return Path(node.external) if node.external else shared.get(node.hash, store)


def lay_over(plan: InstallPlan) -> None:
    """Make Spack's packages and the MPI library visible in the virtual environment of the prefix."""
    part = part_of(plan)
    view, bin_ = plan.prefix / VIEW, plan.prefix / "bin"
    packages = sorted(view.glob("lib*/python3*/site-packages"))  # in lib or lib64, depending on the package
    for mine in plan.prefix.glob("lib/python3*/site-packages"):
        documents.write_text(mine / "spack_view.pth", "".join(f"{each}\n" for each in packages))
    _link(sorted((view / "bin").glob("*")), bin_)
    for further in _FURTHER:
        _link(sorted(file for file in (view / further).rglob("*") if os.access(file, os.X_OK)), bin_)
    mpi = part.lock.node(TRAITS[plan.mpi].spack)
    if mpi is None:
        raise BuildFailed(f"Spack's environment has no {TRAITS[plan.mpi].spack}, the MPI library of stack {plan.stack}")
    if mpi.external:
        write_wrappers(Path(mpi.external), plan.prefix)


def _link(programs: list[Path], directory: Path) -> None:
    """Link programs into ``directory``, except Python and those that already exist there."""
    for program in programs:
        link = directory / program.name
        if program.is_file() and not program.name.startswith(("python", "activate")) and not os.path.lexists(link):
            link.symlink_to(os.path.relpath(program, directory))
