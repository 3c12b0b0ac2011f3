"""What must hold across the fields of a stack, beside its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hidl_cli.inputs.load import Rules, load
from hidl_cli.inputs.problems import Fault, clipped, mapping, nearest, one_of
from hidl_cli.mpi import WHEELS
from hidl_cli.stack import own_wheel
from hidl_cli.stack.schema import Stack

_OF_VARIANTS = ("requirements", "instead_of", "imports", "builds")


def names_and_specifiers(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Package names are those of PEP 508, each given once; versions are specifiers of PEP 440."""
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
                path, f"`{name}` and `{seen[canonical]}` are the same package", "each package once", on_key=True
            )
        seen[canonical] = name
        if isinstance(version, str):
            try:
                SpecifierSet(version)
            except InvalidSpecifier:
                expected = "a version specifier (PEP 440), such as `>=2.5`, `==4.1.*` or empty"
                yield Fault(path, f"invalid version specifier `{clipped(version)}`", expected)


def mpi_is_installed(data: Mapping[str, Any]) -> Iterator[Fault]:
    """The package of the MPI library is among the packages."""
    mpi, packages = data.get("mpi"), mapping(data, "packages")
    if isinstance(mpi, str) and packages and mpi not in packages:
        yield Fault(
            ("mpi",), f"the package `{clipped(mpi)}` is not among `packages`", one_of(packages), nearest(mpi, packages)
        )


def libraries_exist(data: Mapping[str, Any]) -> Iterator[Fault]:
    """hidl's own libraries are those that it ships, each given once."""
    given, shipped = data.get("libraries"), own_wheel.libraries()
    names = given if isinstance(given, list) else []
    for index, name in enumerate(names):
        path = ("libraries", index)
        if isinstance(name, str) and name not in shipped:
            message = f"hidl ships no library called `{clipped(name)}`"
            yield Fault(path, message, one_of(shipped), nearest(name, shipped))
        elif name in names[:index]:
            yield Fault(path, f"`{clipped(str(name))}` is given twice", "each library once")


def builds(data: Mapping[str, Any]) -> Iterator[Fault]:
    """What is fetched has a hash, and what a build depends on is among the packages."""
    packages = mapping(data, "packages")
    for number, build in enumerate(data["builds"] if isinstance(data.get("builds"), list) else []):
        source = mapping(build, "source") if isinstance(build, Mapping) else {}
        if source.get("pypi") and not source.get("sha256"):
            yield Fault(("builds", number, "source"), "what is fetched needs its `sha256`", "64 hexadecimal digits")
        if source.get("any_version") and source.get("sha256"):
            yield Fault(("builds", number, "source"), "a file of any version has no `sha256`", "one of the two")
        against = build.get("against") if isinstance(build, Mapping) else None
        for place, name in enumerate(against if isinstance(against, list) else []):
            if isinstance(name, str) and name not in packages:
                message = f"`{clipped(name)}` is not among `packages`"
                yield Fault(("builds", number, "against", place), message, one_of(packages), nearest(name, packages))


def requirements(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Further requirements are packages of an index, and none brings another MPI library."""
    from hidl_cli.stack import schema  # imports packaging later, and only files that have requirements need it

    mpi = data.get("mpi")
    for path, given in _required(data):
        for index, text in enumerate(given if isinstance(given, list) else []):
            place = (*path, index)
            try:
                parsed = schema.parse(text) if isinstance(text, str) else None
                if parsed is not None and parsed != text:
                    yield Fault(place, f"`{clipped(text)}` is not in its plain form", f"`{clipped(parsed)}`")
                if parsed is not None and path[-1] == "requirements" and mpi in WHEELS:
                    schema.refuse_other_build(parsed, mpi=mpi)
            except schema.Unusable as error:
                yield Fault(place, error.message, error.expected)


def _required(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every list of requirements with its path, if it is one."""
    yield ("requirements",), data.get("requirements")
    yield ("constraints",), data.get("constraints")
    for accelerator, variant in mapping(data, "variants").items():
        if isinstance(variant, Mapping):
            yield ("variants", accelerator, "requirements"), variant.get("requirements")


def variants(data: Mapping[str, Any]) -> Iterator[Fault]:
    """A variant holds something; what it leaves out or builds is there in others, and the MPI library stays."""
    packages = mapping(data, "packages")
    listed = data.get("builds") if isinstance(data.get("builds"), list) else None
    built = [str(each["name"]) for each in listed or () if isinstance(each, Mapping) and "name" in each]
    for accelerator, variant in mapping(data, "variants").items():
        if isinstance(variant, Mapping) and not any(variant.get(key) for key in _OF_VARIANTS):
            yield Fault(
                ("variants", accelerator),
                f"variant `{clipped(accelerator)}` is empty",
                one_of(_OF_VARIANTS),
                on_key=True,
            )
        left_out = variant.get("instead_of") if isinstance(variant, Mapping) else None
        for index, name in enumerate(left_out if isinstance(left_out, list) else []):
            path = ("variants", accelerator, "instead_of", index)
            if name == data.get("mpi"):
                yield Fault(path, f"`{clipped(str(name))}` is the MPI library of the stack", "another package")
            elif isinstance(name, str) and packages and name not in packages:
                message = f"`{clipped(name)}` is not among `packages`"
                yield Fault(path, message, one_of(packages), nearest(name, packages))
        for name in mapping(variant, "builds") if isinstance(variant, Mapping) else ():
            if name not in built:
                message = f"`{clipped(name)}` is not among `builds`"
                place = ("variants", accelerator, "builds", name)
                yield Fault(place, message, one_of(built), nearest(name, built), on_key=True)


def tuning(data: Mapping[str, Any]) -> Iterator[Fault]:
    """Each MPI family reads the variables that are set for it, and their values fit."""
    if data.get("tuning"):
        from hidl_cli.tuning.judge import check_by_family  # 13 ms, which files without tuning need not spend

        yield from check_by_family(data)


#: What a stack's file must satisfy.
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
            ("builds",),
            ("advisories",),
            ("spack", "specs"),
            ("spack", "wheels"),
        }
    ),
)


# Stacks by name.


def load_stack(name: str) -> Stack:
    """The stack of that name with what it extends; ``UsageError`` if unknown, ``InvalidInput`` if faulty."""
    return load(RULES, name)
