"""Read Spack's ``packages.yaml`` and ``compilers.yaml``, and the recipes of Stackinator, which are built on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from hidl_cli.inputs.problems import clipped
from hidl_cli.mpi import TRAITS, Family
from hidl_cli.site.configurations.carried import ANY_NODES, ConfigurationFile, Key, first
from hidl_cli.site.draft import unique
from hidl_cli.site.probes.software import PROGRAMS

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_SPEC = re.compile(rf"(?P<name>{_NAME})(?:@(?P<version>[^\s%+~^]+))?(?P<rest>.*)", re.DOTALL)
_EXACT = re.compile(r"=?([A-Za-z0-9][A-Za-z0-9._-]*)")
_TOKEN = re.compile(
    r"%[^\s%+~^]+|\^\S+|[+~][A-Za-z0-9_-]+|[A-Za-z0-9_-]+:?==?(?:'[^']*'|\"[^\"]*\"|[^\s%^+~]*)|\S+?(?=\s|[%^+~]|$)"
)
#: Keys in specs that describe the machine or the build, but are not variants.
_NOT_VARIANTS = ("arch", "target", "os", "platform", "cflags", "cxxflags", "fflags", "cppflags", "ldflags", "ldlibs")
_GPU_ARCH = re.compile(r"amdgpu_target=(?P<amd>gfx[0-9a-f]+)|cuda_arch=(?P<nvidia>[0-9]+[a-z]?)")
_LANGUAGES = (("c", 0), ("cxx", 1), ("fortran", 2))
#: Spack packages of compilers that have a different name in compilers.yaml.
_PACKAGES = {
    "clang": "llvm",
    "rocmcc": "llvm-amdgpu",
    "oneapi": "intel-oneapi-compilers",
    "dpcpp": "intel-oneapi-compilers",
    "intel": "intel-oneapi-compilers-classic",
}
_MPI: Mapping[str, Family] = {traits.spack: family for family, traits in TRAITS.items()} | {"intel-mpi": "intel-mpi"}
_OTHER_VERSION = "a site file has one external per package; the newest is kept"
_TOP: tuple[str, ...] = ()
_BUILT = "built by the recipe, so it is no compiler of the site"
_STACK = "software of a stack, not of the site"


@dataclass(frozen=True)
class ParsedSpec:
    """A Spack spec. ``version`` is None unless it is exact, and ``rest`` contains what a site file cannot express."""

    name: str
    version: str | None
    variants: str
    rest: str


def parse_spec(text: str) -> ParsedSpec | None:
    """Parse a spec such as ``openmpi@5.0.5 +cuda fabrics=ofi %gcc@12.3``. Returns None if it has no name.

    The namespace of a repository (``builtin.openmpi``) is not part of the name.
    """
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        return None
    exact = _EXACT.fullmatch(found["version"] or "")
    variants: list[str] = []
    rest = [] if exact or not found["version"] else [f"@{found['version']}"]
    for token in _TOKEN.findall(found["rest"]):
        key = re.split(r":?=", token)[0]
        is_variant = token[0] in "+~" or ("=" in token and key not in _NOT_VARIANTS and token[0] not in "%^")
        (variants if is_variant else rest).append(token)
    name = found["name"].strip(".").rpartition(".")[2]
    return ParsedSpec(name, exact[1] if exact else None, " ".join(variants), " ".join(rest))


def read_packages(file: ConfigurationFile, wanted: str | None, *, root: tuple[str, ...] = ("packages",)) -> None:
    """Read ``packages.yaml``: externals, compilers, MPI libraries and requirements for packages."""
    del wanted
    if isinstance(file.data, dict) and "packages:" in file.data:  # Spack's override: `packages::`
        file.data["packages"] = file.data.pop("packages:")
    _read_all(file, root)
    for package in file.keys(*root):
        at = (*root, package)
        if not isinstance(package, str) or package == "all":
            continue
        if requirement := file.words(*at, "require"):
            file.carry(("spack", "require", package), requirement, f"packages.{package}.require")
        _read_externals(file, at, package)


def read_compilers(file: ConfigurationFile, wanted: str | None, *, root: tuple[str, ...] = ("compilers",)) -> None:
    """Read ``compilers.yaml``, in which Spack before 1.0 lists compilers."""
    del wanted
    entries = [(*root, at, "compiler") for at in file.keys(*root)]
    specs = [parse_spec(str(file.peek(*at, "spec"))) for at in entries]
    for at, spec in zip(entries, specs, strict=True):
        paths = file.peek(*at, "paths")
        if spec is None or not isinstance(paths, dict) or not first(paths, "cc") or not first(paths, "cxx"):
            continue
        package = _PACKAGES.get(spec.name, spec.name)
        same = [other for other in specs if other and _PACKAGES.get(other.name, other.name) == package]
        key = f"{package}-{spec.version}" if len(same) > 1 else package
        programs = (first(paths, "cc"), first(paths, "cxx"), first(paths, "fc", "f77"))
        system = f"{file.text(*at, 'operating_system') or ''} {file.text(*at, 'target') or ''}".strip()
        why = f"{spec.name}@{spec.version}" + (f" for {system}" if system else "")
        for name in ("spec", "paths"):
            file.take(*at, name)
        _carry_compiler(file, key.lower(), replace(spec, name=package), programs, prefix=None, why=why)
        file.carry(("compilers", key.lower(), "modules"), file.words(*at, "modules"), why)


def read_environment(file: ConfigurationFile, wanted: str | None) -> None:
    """Read a ``spack.yaml``, which may contain both packages and compilers."""
    read_packages(file, wanted, root=("spack", "packages"))
    read_compilers(file, wanted, root=("spack", "compilers"))
    file.leave("spack", "specs", why=_STACK)


def read_recipe_compilers(file: ConfigurationFile, wanted: str | None) -> None:
    """Read the ``compilers.yaml`` of a Stackinator recipe. The recipe builds these compilers, so they are left out."""
    del wanted
    for name in file.keys(*_TOP):
        file.leave(name, why=_BUILT)


def read_recipe_environments(file: ConfigurationFile, wanted: str | None) -> None:
    """Read the ``environments.yaml`` of a Stackinator recipe: the MPI libraries of its environments."""
    del wanted
    for environment in file.keys(*_TOP):
        for at in ((environment, "network", "mpi"), (environment, "mpi", "spec"), (environment, "mpi")):
            spec = parse_spec(found) if isinstance(found := file.peek(*at), str) else None
            if spec is None or spec.name not in _MPI:
                continue
            file.take(*at)
            why = f"environment {environment}: {found}; set the prefix below which the environment is mounted"
            key = spec.name if spec.version is None else f"{spec.name}-{spec.version}"
            _carry_mpi(file, key, spec, why)
            if gpu := file.text(environment, "mpi", "gpu"):
                file.carry(("mpi", key, "variants"), f"{spec.variants} +{gpu}".strip(), why)
        file.leave(environment, "specs", why=_STACK)
        file.leave(environment, "compiler", why=_BUILT)


def read_recipe_network(file: ConfigurationFile, wanted: str | None) -> None:
    """Read the ``network.yaml`` of a Stackinator cluster configuration."""
    read_packages(file, wanted)


def read_recipe(file: ConfigurationFile, wanted: str | None) -> None:
    """Read the ``config.yaml`` of a Stackinator recipe, which describes a stack rather than the machine."""
    del wanted
    for name in file.keys(*_TOP):
        file.leave(name, why=_STACK)


def _read_all(file: ConfigurationFile, root: tuple[str, ...]) -> None:
    """Read the settings for all packages: the microarchitecture and the preferred MPI library."""
    at = (*root, "all")
    for key in ("target", "require"):
        words = file.peek(*at, key)
        found = [words] if isinstance(words, str) else words
        if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str):
            name = found[0].removeprefix("target=")
            if re.fullmatch(r"[a-z0-9_]+", name) and (key == "target" or found[0] != name):
                file.take(*at, key)
                file.carry(("spack", "target"), name, f"packages.all.{key}")
    variants = file.peek(*at, "variants")
    words = variants.split() if isinstance(variants, str) else variants if isinstance(variants, list) else []
    for number, variant in enumerate(words):
        if isinstance(variant, str) and (found_arch := _GPU_ARCH.fullmatch(variant.strip())):
            file.take(*at, "variants")
            arch = found_arch["amd"] or f"sm_{found_arch['nvidia']}"
            file.carry(("node_types", ANY_NODES, "gpu_arch"), arch, f"packages.all.variants: {variant}")
            if others := [*words[:number], *words[number + 1 :]]:
                shown = " ".join(map(str, others))
                file.reasons.append(f"packages.all.variants: {clipped(shown)} (a site file has no key for it)")
            break
    preferred = file.peek(*at, "providers", "mpi")
    preferred = preferred[0] if isinstance(preferred, list) and preferred else preferred
    if isinstance(preferred, str) and (spec := parse_spec(preferred)):
        providers = file.words(*at, "providers", "mpi")
        file.carry(("default_mpi",), spec.name, f"packages.all.providers.mpi: {', '.join(providers)}")


def _read_externals(file: ConfigurationFile, at: tuple[str, ...], package: str) -> None:
    found: list[tuple[int, ParsedSpec]] = []
    for index in file.keys(*at, "externals"):
        spec = parse_spec(text) if isinstance(text := file.peek(*at, "externals", index, "spec"), str) else None
        if spec is None or not (file.peek(*at, "externals", index, "prefix") or _modules(file, at, index)):
            continue
        if spec.name == package:
            found.append((index, spec))
        else:  # Spack rejects such an external, and its family or compiler cannot be derived from the key
            file.leave(*at, "externals", index, why=f"an external of {package} cannot be another package, {spec.name}")
    found.sort(key=lambda each: _order(each[1].version), reverse=True)
    keys: list[str] = []
    buildable = file.peek(*at, "buildable")
    for number, (index, spec) in enumerate(found):
        place: tuple[Key, ...] = (*at, "externals", index)
        compilers = file.peek(*place, "extra_attributes", "compilers")
        is_compiler = package in PROGRAMS or isinstance(compilers, dict)
        if number and package not in _MPI and not is_compiler:
            file.leave(*place, why=_OTHER_VERSION)
            continue
        text = file.text(*place, "spec")
        key = unique((f"{package}-{spec.version}" if number and spec.version else package).lower(), keys)
        keys.append(key)
        prefix, modules = file.text(*place, "prefix"), file.words(*place, "modules")
        prefix = _literal(file, prefix, str(text))
        if is_compiler:
            _read_compiler(file, place, key, spec, prefix=prefix, text=str(text))
            file.carry(("compilers", key, "modules"), modules, str(text))
            continue
        if package not in _MPI and prefix is None and not modules:
            file.reasons.append(f"packages.{package}: {text} (neither a prefix nor modules remain)")
            continue
        if package in _MPI:
            section = ("mpi", key)
            _carry_mpi(file, key, spec, str(text))
        else:
            section = ("externals", key)
            if isinstance(buildable, bool):
                file.take(*at, "buildable")
            file.carry((*section, "version"), spec.version, str(text))
            file.carry((*section, "variants"), spec.variants, str(text))
            file.carry((*section, "buildable"), buildable if buildable is True else None, str(text))
        file.carry((*section, "modules"), modules, str(text))
        file.carry((*section, "prefix"), prefix, str(text))
        if spec.rest:
            file.reasons.append(f"packages.{package}: {spec.rest} of {text} (a site file has no key for it)")


def _literal(file: ConfigurationFile, place: str | None, text: str) -> str | None:
    """Return a path that Spack does not expand; any other is left out."""
    if place is None or not ("$" in place or place.startswith("~")):
        return place
    file.reasons.append(f"{text}: {clipped(place)} (Spack expands it; a site file is literal)")
    return None


def _modules(file: ConfigurationFile, at: tuple[str, ...], index: int) -> Any:
    return file.peek(*at, "externals", index, "modules")


def _read_compiler(
    file: ConfigurationFile, place: tuple[Key, ...], key: str, spec: ParsedSpec, *, prefix: str | None, text: str
) -> None:
    programs = file.take(*place, "extra_attributes", "compilers")
    if not isinstance(programs, dict):
        usual = PROGRAMS.get(spec.name, ("cc", "c++", "fc"))
        fortran = usual[2] if "fortran" in spec.variants else None
        _carry_compiler(file, key, spec, (None, None, fortran), prefix=prefix, why=text)
        return
    given = (first(programs, "c"), first(programs, "cxx", "c++"), first(programs, "fortran"))
    for language, program in programs.items():
        if language not in ("c", "cxx", "c++", "fortran"):
            file.reasons.append(f"compiler {key}: {language} {clipped(str(program))} (a site file has no key for it)")
    _carry_compiler(file, key, spec, given, prefix=prefix, why=text)


def _carry_compiler(
    file: ConfigurationFile,
    key: str,
    spec: ParsedSpec,
    programs: tuple[str | None, str | None, str | None],
    *,
    prefix: str | None,
    why: str,
) -> None:
    """Carry over a compiler, with the prefix that its programs share if the programs have their usual names."""
    usual = PROGRAMS.get(spec.name, ("cc", "c++", "fc"))
    programs = tuple(_literal(file, one, why) for one in programs)  # type: ignore[assignment]
    directories = {str(PurePosixPath(one).parent) for one in programs if one and one.startswith("/")}
    section = ("compilers", key)
    if len(directories) == 1 and (common := directories.pop()).endswith("/bin"):
        found = common.removesuffix("/bin")
        if prefix not in (None, found):
            why += f"; its prefix is given as {prefix}, but its programs are in {common}"
        prefix = found
        programs = tuple(one and PurePosixPath(one).name for one in programs)  # type: ignore[assignment]
    file.carry((*section, "package"), spec.name, why)
    file.carry((*section, "version"), spec.version, why)
    file.carry((*section, "prefix"), prefix, why)
    for language, at in _LANGUAGES:
        if language == "fortran" or programs[at] != usual[at]:
            file.carry((*section, language), programs[at], why)


def _carry_mpi(file: ConfigurationFile, key: str, spec: ParsedSpec, why: str) -> None:
    file.carry(("mpi", key, "family"), _MPI[spec.name], why)
    file.carry(("mpi", key, "version"), spec.version, why)
    file.carry(("mpi", key, "variants"), spec.variants, why)


def _order(version: str | None) -> list[tuple[int, str]]:
    """Return the sort key of a version, which compares numbers as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[._-]", version or "")]
