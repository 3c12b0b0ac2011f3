"""Published vulnerabilities of packages (``recipes/advisories.yaml``), held against versions without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from functools import cache
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, ValidationError, model_validator

from hidl_cli import paths
from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.fields import Strict


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


class Advisory(Strict):
    """One vulnerability: the versions that it is in (any of ``affected``), and the first after them, None: there is
    none, and ``mend`` says how to live with it."""

    id: Annotated[str, Field(pattern=r"^(CVE|GHSA|PYSEC)-[0-9A-Za-z-]+$")]
    packages: Annotated[list[str], Field(min_length=1)]
    affected: Annotated[list[Annotated[str, AfterValidator(_specifier)]], Field(min_length=1)]
    fixed: str | None
    text: str
    mend: str | None = None
    url: Annotated[str, Field(pattern=r"^https://")]

    @model_validator(mode="after")
    def _mendable(self) -> Advisory:
        if (self.fixed is None) == (self.mend is None):
            raise ValueError(f"{self.id}: either `fixed` or `mend`")
        return self

    def affects(self, version: str) -> bool:
        """Is the vulnerability in that version? What is no version of PEP 440 is taken as not affected."""
        try:
            parsed = Version(version)
        except InvalidVersion:
            return False
        return any(SpecifierSet(each).contains(parsed, prereleases=True) for each in self.affected)


class Advisories(Strict):
    """All of them, as they were known on a day."""

    as_of: date
    advisories: list[Advisory]


@cache
def known() -> Advisories:
    """What ships with hidl; ``InvalidInput`` where the file is not what it should be."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    file = paths.shipped() / "recipes" / "advisories.yaml"
    try:
        return Advisories.model_validate(yaml.load(file.read_text(encoding="utf-8"), loader))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InvalidInput(f"the advisories in {file} cannot be read: {error}") from error


def affecting(versions: Mapping[str, str]) -> Iterator[tuple[str, str, list[Advisory]]]:
    """The packages of ``versions`` (name to version) that have any, each with its version and its advisories."""
    for package, version in versions.items():
        found = [each for each in known().advisories if package in each.packages and each.affects(version)]
        if found:
            yield package, version, found
