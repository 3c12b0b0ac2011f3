"""Published vulnerabilities of packages, from ``recipes/advisories.yaml``: no network is used."""

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
    """One vulnerability: ``affected`` version ranges, and the first fixed version; None: ``fix`` describes a
    workaround."""

    id: Annotated[str, Field(pattern=r"^(CVE|GHSA|PYSEC)-[0-9A-Za-z-]+$")]
    packages: Annotated[list[str], Field(min_length=1)]
    affected: Annotated[list[Annotated[str, AfterValidator(_specifier)]], Field(min_length=1)]
    fixed: str | None
    text: str
    fix: str | None = None
    url: Annotated[str, Field(pattern=r"^https://")]

    @model_validator(mode="after")
    def _mendable(self) -> Advisory:
        if (self.fixed is None) == (self.fix is None):
            raise ValueError(f"{self.id}: either `fixed` or `fix`")
        return self

    def affects(self, version: str) -> bool:
        """Whether that version is affected; False if it is not a PEP 440 version."""
        try:
            parsed = Version(version)
        except InvalidVersion:
            return False
        return any(SpecifierSet(each).contains(parsed, prereleases=True) for each in self.affected)


class Advisories(Strict):
    """All advisories, as of a date."""

    as_of: date
    advisories: list[Advisory]


@cache
def load_advisories() -> Advisories:
    """Read the shipped advisories. Raises ``InvalidInput`` if the file is invalid."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    file = paths.shipped() / "recipes" / "advisories.yaml"
    try:
        return Advisories.model_validate(yaml.load(file.read_text(encoding="utf-8"), loader))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InvalidInput(f"invalid advisories in {file}: {error}") from error


def find_advisories(versions: Mapping[str, str]) -> Iterator[tuple[str, str, list[Advisory]]]:
    """Yield the affected packages of ``versions`` (name to version), with their version and advisories."""
    for package, version in versions.items():
        found = [each for each in load_advisories().advisories if package in each.packages and each.affects(version)]
        if found:
            yield package, version, found
