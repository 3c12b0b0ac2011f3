"""Stack validation that goes beyond the schema because it involves several fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hidl_cli.inputs.load import Rules, load
from hidl_cli.inputs.problems import Fault, clipped, mapping, nearest, one_of
from hidl_cli.mpi import WHEELS
from hidl_cli.stack import own_wheel
from hidl_cli.stack.schema import Stack

_VARIANT_KEYS = ("requirements", "instead_of", "imports", "builds")


def names_and_specifiers(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require valid and unique package names (PEP 508) and version specifiers (PEP 440)."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.utils import InvalidName, canonicalize_name

    seen: dict[str, str] = {}
    for name, version in mapping(data, "packages").items():
        path = ("packages", name)
        try:
            canonical = canonicalize_name(name, validate=True)
        except InvalidName:
            expected = "letters, digits, and . _ - between them (PEP 508)"
            yield Fault(path, f"invalid package name `{clipped(name)}`", expected, on_key=True)
            continue
        if canonical in seen:
            yield Fault(
                path, f"`{name}` and `{seen[canonical]}` are the same package", "each package only once", on_key=True
            )
        seen[canonical] = name
        if isinstance(version, str):
            try:
                SpecifierSet(version)
            except InvalidSpecifier:
                expected = "a version specifier (PEP 440), such as `>=2.5`, `==4.1.*` or empty"
                yield Fault(path, f"invalid version specifier `{clipped(version)}`", expected)


def mpi_is_installed(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require the MPI library to be one of the packages."""
    mpi, packages = data.get("mpi"), mapping(data, "packages")
    if isinstance(mpi, str) and packages and mpi not in packages:
        yield Fault(
            ("mpi",), f"package `{clipped(mpi)}` is not in `packages`", one_of(packages), nearest(mpi, packages)
        )


def libraries_exist(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require that hidl ships each of the libraries, and that none is listed twice."""
    given, shipped = data.get("libraries"), own_wheel.libraries()
    names = given if isinstance(given, list) else []
    for index, name in enumerate(names):
        path = ("libraries", index)
        if isinstance(name, str) and name not in shipped:
            message = f"unknown library `{clipped(name)}`"
            yield Fault(path, message, one_of(shipped), nearest(name, shipped))
        elif name in names[:index]:
            yield Fault(path, f"duplicate library `{clipped(str(name))}`", "each library only once")


def builds(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require a hash for downloaded sources, and require the dependencies of builds to be among the packages."""
    packages = mapping(data, "packages")
    for number, build in enumerate(data["builds"] if isinstance(data.get("builds"), list) else []):
        source = mapping(build, "source") if isinstance(build, Mapping) else {}
        if source.get("pypi") and not source.get("sha256"):
            yield Fault(("builds", number, "source"), "`pypi` requires `sha256`", "64 hexadecimal digits")
        if source.get("any_version") and source.get("sha256"):
            yield Fault(("builds", number, "source"), "`any_version` and `sha256` cannot be combined", "one of them")
        against = build.get("against") if isinstance(build, Mapping) else None
        for place, name in enumerate(against if isinstance(against, list) else []):
            if isinstance(name, str) and name not in packages:
                message = f"`{clipped(name)}` is not in `packages`"
                yield Fault(("builds", number, "against", place), message, one_of(packages), nearest(name, packages))


def requirements(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check that requirements are supported, are in normal form, and do not add another MPI library."""
    from hidl_cli.stack import schema  # ``parse`` imports packaging, which only files with requirements need

    mpi = data.get("mpi")
    for path, given in _required(data):
        for index, text in enumerate(given if isinstance(given, list) else []):
            place = (*path, index)
            try:
                parsed = schema.parse(text) if isinstance(text, str) else None
                if parsed is not None and parsed != text:
                    yield Fault(place, f"`{clipped(text)}` is not in normal form", f"`{clipped(parsed)}`")
                if parsed is not None and path[-1] == "requirements" and mpi in WHEELS:
                    schema.check_build(parsed, mpi=mpi)
            except schema.UnusableRequirement as error:
                yield Fault(place, error.message, error.expected)


def _required(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the path and value of each field with requirements."""
    yield ("requirements",), data.get("requirements")
    yield ("constraints",), data.get("constraints")
    for accelerator, variant in mapping(data, "variants").items():
        if isinstance(variant, Mapping):
            yield ("variants", accelerator, "requirements"), variant.get("requirements")


def variants(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Require variants to be non-empty, to refer to existing packages and builds, and to keep the MPI library."""
    packages = mapping(data, "packages")
    listed = data.get("builds") if isinstance(data.get("builds"), list) else None
    built = [str(each["name"]) for each in listed or () if isinstance(each, Mapping) and "name" in each]
    for accelerator, variant in mapping(data, "variants").items():
        if isinstance(variant, Mapping) and not any(variant.get(key) for key in _VARIANT_KEYS):
            message = f"variant `{clipped(accelerator)}` is empty"
            yield Fault(("variants", accelerator), message, one_of(_VARIANT_KEYS), on_key=True)
        omitted = variant.get("instead_of") if isinstance(variant, Mapping) else None
        for index, name in enumerate(omitted if isinstance(omitted, list) else []):
            path = ("variants", accelerator, "instead_of", index)
            if name == data.get("mpi"):
                yield Fault(path, f"`{clipped(str(name))}` is the MPI library of the stack", "another package")
            elif isinstance(name, str) and packages and name not in packages:
                message = f"`{clipped(name)}` is not in `packages`"
                yield Fault(path, message, one_of(packages), nearest(name, packages))
        for name in mapping(variant, "builds") if isinstance(variant, Mapping) else ():
            if name not in built:
                message = f"`{clipped(name)}` is not in `builds`"
                place = ("variants", accelerator, "builds", name)
                yield Fault(place, message, one_of(built), nearest(name, built), on_key=True)


def tuning(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Check that the MPI family reads the variables in ``tuning``, and that their values are valid."""
    if data.get("tuning"):
        from hidl_cli.tuning.judge import check_by_family  # takes 13 ms; only files with tuning need it

        yield from check_by_family(data)


#: The rules for stack files.
RULES = Rules(
    "stack",
    Stack,
    (names_and_specifiers, mpi_is_installed, libraries_exist, builds, variants, requirements, tuning),
    appended=frozenset(
        {
            ("verify", "imports"),
            ("verify", "modules"),
            ("libraries",),
            ("requirements",),
            ("constraints",),
            ("indexes",),
            ("find_links",),
            ("builds",),
            ("advisories",),
            ("spack", "specs"),
            ("spack", "wheels"),
        }
    ),
)


def load_stack(name: str) -> Stack:
    """Load a stack and the stacks that it extends.

    Raises ``UsageError`` if it is unknown and ``InvalidInput`` if it is invalid.
    """
    return load(RULES, name)
