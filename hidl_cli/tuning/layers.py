"""Merge presets, files and options into a run's tuning, which keeps each value's origin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hidl_cli import paths
from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs.check import Scalar
from hidl_cli.mpi import Family, Library
from hidl_cli.tuning.catalogue import numbers, variable
from hidl_cli.tuning.judge import LD_PRELOAD, InvalidSetting, Layer, Setting, ValidSetting, judge

_DL = ("MV2_SUPPORT_DL", "MV2_SUPPORT_TENSOR_FLOW")  # the second one is the older name
_GPUS = ("MV2_USE_CUDA", "MV2_USE_ROCM")
_LIBMPI = re.compile(r"(^|[\s:/])libmpi(cxx|ch)?\.so[0-9.]*($|[\s:])")


def preloads(library: Library, settings: Iterable[Setting]) -> bool:
    """Return whether the launcher must preload the library's ``libmpi.so`` into the ranks.

    Only MVAPICH2-GDR on GPUs without ``MV2_SUPPORT_DL`` needs this, unless ``libmpi.so`` is already preloaded.
    """
    values = {setting.name: setting.value for setting in settings}
    if library.family != "mvapich2-gdr" or not any(values.get(name) == "1" for name in _GPUS):
        return False
    return not preloads_libmpi(values, library.environment) and not any(values.get(name) == "1" for name in _DL)


def preloads_libmpi(values: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    """Return whether a tuning value or the site's environment for the library preloads ``libmpi.so``."""
    return any(_names_libmpi(where.get(LD_PRELOAD)) for where in (values, environment))


def conflict(settings: Iterable[Setting], environment: Mapping[str, str]) -> Problem | None:
    """Return a problem if ``libmpi.so`` is preloaded although ``MV2_SUPPORT_DL`` is set.

    Args:
        settings: The effective tuning.
        environment: The site's environment for the library.
    """
    by_name = {setting.name: setting for setting in settings}
    chosen = next((by_name[name] for name in _DL if name in by_name and by_name[name].value == "1"), None)
    preload = by_name.get(LD_PRELOAD)
    if chosen is None:
        return None
    value, origin = environment.get(LD_PRELOAD), "the site's environment for this library"
    if preload is not None:
        value, origin = preload.value, preload.origin
    if not _names_libmpi(value):
        return None
    return Problem(
        f"{chosen.name}=1 ({chosen.origin}) and preloading libmpi.so with {LD_PRELOAD} ({origin}) cannot be combined",
        f"either no {LD_PRELOAD} or {chosen.name}=0",
        (LD_PRELOAD,),
    )


def _names_libmpi(value: object) -> bool:
    return isinstance(value, str) and _LIBMPI.search(value) is not None


# Presets recommended by the guides of MPI families, from ``recipes/tuning/presets.yaml``.


@dataclass(frozen=True)
class Preset:
    """Variables that an MPI family's documentation recommends under certain conditions.

    Conditions that are None or empty always apply.

    Attributes:
        compared: True if the run's times are compared with those of other launches.
        needs: Variables with their values, at least one of which must be in effect.
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
        """Return whether the preset applies.

        Args:
            library: The MPI library of the run.
            switched_on: Variables that any layer sets to a value other than 0.
            in_effect: Values set by the layers and by earlier presets, by main name. All other variables have their
                defaults.
            gpus: True if the run computes on GPUs.
            compared: True if the run's times are compared with those of other launches.
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
        """The conditions as words, for tables."""
        words = {None: [], True: ["with GPUs"], False: ["without GPUs"]}[self.gpus]
        words += {None: [], True: ["if times are compared"], False: ["if no times are compared"]}[self.compared]
        words += [f"since version {self.version.removeprefix('>=')}"] if self.version else []
        words += [f"unless {' or '.join(self.unless)} is set"] if self.unless else []
        needs = " or ".join(f"{name}={value}" for name, value in self.needs)
        words += [f"only with {needs}"] if needs else []
        return ", ".join(words)


@cache
def load_presets() -> tuple[Preset, ...]:
    """Return the presets of all families."""
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


def merge_layers(
    library: Library, layers: Sequence[Layer], *, gpus: bool, compared: bool = False
) -> tuple[Setting, ...]:
    """Merge layers into the presets for the library's family. Later layers take precedence.

    A variable with several names is treated as a single variable, under its name in the last layer. Raises
    ``InvalidInput``, which lists variables that the library does not read, invalid values and conflicts.

    Args:
        library: The MPI library of the run.
        layers: Layers in ascending order of precedence.
        gpus: True if the run computes on GPUs.
        compared: True if the run's times are compared with those of other launches, as in a study or a validation.
    """
    merged: dict[str, Setting] = {}
    problems: list[Problem] = []
    for layer in (*_presets(library, layers, gpus=gpus, compared=compared), *layers):
        settings, faults = _check(library, layer)
        merged |= settings
        problems += faults
    if not problems and (both := conflict(merged.values(), library.environment)):
        problems.append(both)
    if problems:
        version = f" {library.version}" if library.version else ""
        raise InvalidInput(
            f"invalid tuning for {library.family}{version} ({library.name})",
            problems=problems,
            hint=f"hidl tuning list --mpi {library.family} shows the variables that it reads",
        )
    return tuple(merged.values())


def _check(library: Library, layer: Layer) -> tuple[dict[str, Setting], list[Problem]]:
    """Return a layer's valid settings, by the variable's main name, and the problems with the other settings."""
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for name, value in layer.values.items():
        judged = judge(library.family, library.version, name, value)
        if isinstance(judged, InvalidSetting):
            message = f"{judged.message} ({layer.origin})"
            problems.append(Problem(message, judged.expected, (name,), suggestion=judged.suggestion))
        elif (other := settings.get(judged.variable)) and other.value != judged.value:
            message = f"{other.name} and {name} are the same variable, with different values ({layer.origin})"
            problems.append(Problem(message, "only one of the two names", (name,)))
        else:
            settings[judged.variable] = Setting(name, judged.value, layer.origin)
    return settings, problems


def _presets(library: Library, layers: Sequence[Layer], *, gpus: bool, compared: bool) -> Iterator[Layer]:
    values = {name: value for layer in layers for name, value in layer.values.items()}
    switched_on = {name for name, value in values.items() if name != LD_PRELOAD and str(value) not in ("0", "False")}
    if preloads_libmpi(values, library.environment):
        switched_on.add(LD_PRELOAD)
    judged = (
        judge(library.family, library.version, name, value) for layer in layers for name, value in layer.values.items()
    )
    in_effect = {setting.variable: setting.value for setting in judged if isinstance(setting, ValidSetting)}
    for preset in load_presets():
        if preset.applies(library, frozenset(switched_on), in_effect, gpus=gpus, compared=compared):
            yield Layer(f"preset of {library.family} ({preset.source})", preset.values)
            in_effect = {**{name: str(value) for name, value in preset.values.items()}, **in_effect}
