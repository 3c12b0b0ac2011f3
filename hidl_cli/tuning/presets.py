"""Presets: what the guide of an MPI family recommends, as data in ``recipes/tuning/presets.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hidl_cli import paths
from hidl_cli.inputs.fields import Scalar
from hidl_cli.mpi import Family, Library
from hidl_cli.tuning.catalogue import numbers


@dataclass(frozen=True)
class Preset:
    """Variables that a family's guide recommends, under conditions; None and empty: under any."""

    family: Family
    values: Mapping[str, Scalar]
    source: str
    gpus: bool | None = None
    version: str | None = None
    unless: tuple[str, ...] = ()

    def holds(self, library: Library, switched_on: frozenset[str], *, gpus: bool) -> bool:
        """Does it apply? ``switched_on``: the variables that a higher layer sets to anything but 0."""
        return (
            library.family == self.family
            and self.gpus in (None, gpus)
            and _admits(self.version, library.version)
            and not switched_on.intersection(self.unless)
        )

    @property
    def conditions(self) -> str:
        """When it applies, in words."""
        words = {None: [], True: ["with GPUs"], False: ["without GPUs"]}[self.gpus]
        words += [f"from version {self.version.removeprefix('>=')} on"] if self.version else []
        words += [f"unless {' or '.join(self.unless)} is set"] if self.unless else []
        return ", ".join(words)


def applying(library: Library, switched_on: frozenset[str], *, gpus: bool) -> Iterator[Preset]:
    """The presets that apply, in their order."""
    return (preset for preset in presets() if preset.holds(library, switched_on, gpus=gpus))


@cache
def presets() -> tuple[Preset, ...]:
    """All presets of all families."""
    import yaml

    text = (paths.shipped() / "recipes" / "tuning" / "presets.yaml").read_text(encoding="utf-8")
    document: dict[Family, list[dict[str, Any]]] = yaml.safe_load(text)
    return tuple(_preset(family, entry) for family, entries in document.items() for entry in entries)


def _preset(family: Family, entry: Mapping[str, Any]) -> Preset:
    when = entry.get("when", {})
    unless = tuple(entry.get("unless", ()))
    return Preset(family, entry["set"], entry["source"], when.get("gpus"), when.get("version"), unless)


def _admits(wanted: str | None, version: str | None) -> bool:
    own = numbers(version)
    return wanted is None or not own or own >= numbers(wanted.removeprefix(">="))
