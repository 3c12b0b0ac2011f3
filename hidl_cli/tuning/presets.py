"""Presets that the guide of an MPI family recommends, from ``recipes/tuning/presets.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hidl_cli import paths
from hidl_cli.inputs.fields import Scalar
from hidl_cli.mpi import Family, Library
from hidl_cli.tuning.catalogue import numbers, variable


@dataclass(frozen=True)
class Preset:
    """Variables that a family's guide recommends, under conditions; None or empty: always.

    ``compared``: whether times are compared with those of other launches. ``needs``: variables with values, at least
    one of them in effect.
    """

    family: Family
    values: Mapping[str, Scalar]
    source: str
    gpus: bool | None = None
    compared: bool | None = None
    version: str | None = None
    unless: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()

    def applies(
        self,
        library: Library,
        switched_on: frozenset[str],
        in_effect: Mapping[str, str],
        *,
        gpus: bool,
        compared: bool,
    ) -> bool:
        """Whether the preset applies.

        ``switched_on``: variables that a layer sets to anything but 0. ``in_effect``: the values of the layers and of
        earlier presets, by main name; other variables have their defaults.
        """
        return (
            library.family == self.family
            and self.gpus in (None, gpus)
            and self.compared in (None, compared)
            and _includes(self.version, library.version)
            and not switched_on.intersection(self.unless)
            and (not self.needs or any(self._in_effect(*need, in_effect) for need in self.needs))
        )

    def _in_effect(self, name: str, value: str, in_effect: Mapping[str, str]) -> bool:
        known = variable(name, self.family)
        return known is not None and in_effect.get(known.name, known.default) == value

    @property
    def conditions(self) -> str:
        """When it applies, for tables."""
        words = {None: [], True: ["with GPUs"], False: ["without GPUs"]}[self.gpus]
        words += {None: [], True: ["where times are compared"], False: ["where no times are compared"]}[self.compared]
        words += [f"since version {self.version.removeprefix('>=')}"] if self.version else []
        words += [f"unless {' or '.join(self.unless)} is set"] if self.unless else []
        needs = " or ".join(f"{name}={value}" for name, value in self.needs)
        words += [f"only with {needs}"] if needs else []
        return ", ".join(words)


@cache
def load_presets() -> tuple[Preset, ...]:
    """The presets of all families."""
    import yaml

    text = (paths.shipped() / "recipes" / "tuning" / "presets.yaml").read_text(encoding="utf-8")
    document: dict[Family, list[dict[str, Any]]] = yaml.safe_load(text)
    return tuple(_preset(family, entry) for family, entries in document.items() for entry in entries)


def _preset(family: Family, entry: Mapping[str, Any]) -> Preset:
    when = entry.get("when", {})
    unless = tuple(entry.get("unless", ()))
    needs = tuple((name, value) for name, _, value in (word.partition("=") for word in entry.get("needs", ())))
    return Preset(
        family=family,
        values=entry["set"],
        source=entry["source"],
        gpus=when.get("gpus"),
        compared=when.get("compared"),
        version=when.get("version"),
        unless=unless,
        needs=needs,
    )


def _includes(wanted: str | None, version: str | None) -> bool:
    own = numbers(version)
    return wanted is None or not own or own >= numbers(wanted.removeprefix(">="))
