"""The effective tuning of a run: the value of each variable, and its origin."""

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
from hidl_cli.tuning.judge import LD_PRELOAD, Fit, Layer, Misfit, Setting, judge

_DL = ("MV2_SUPPORT_DL", "MV2_SUPPORT_TENSOR_FLOW")  # the second is the older name
_GPUS = ("MV2_USE_CUDA", "MV2_USE_ROCM")
_LIBMPI = re.compile(r"(^|[\s:/])libmpi(cxx|ch)?\.so[0-9.]*($|[\s:])")


def preloads(library: Library, settings: Iterable[Setting]) -> bool:
    """Whether the launcher must preload the library's ``libmpi.so`` into the ranks.

    Only MVAPICH2-GDR with GPUs and without ``MV2_SUPPORT_DL``, and only if it is not preloaded already.
    """
    values = {setting.name: setting.value for setting in settings}
    if library.family != "mvapich2-gdr" or not any(values.get(name) == "1" for name in _GPUS):
        return False
    return not preloads_libmpi(values, library.environment) and not any(values.get(name) == "1" for name in _DL)


def preloads_libmpi(values: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    """Whether the tuning (``values``) or the site's environment of the library preloads ``libmpi.so``."""
    return any(_names_libmpi(where.get(LD_PRELOAD)) for where in (values, environment))


def conflict(settings: Iterable[Setting], environment: Mapping[str, str]) -> Problem | None:
    """A problem if both remedies are set; ``environment``: the site's for the library."""
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
        f"{chosen.name}=1 ({chosen.origin}) and {LD_PRELOAD} of libmpi.so ({origin}) exclude each other",
        f"one of them: no {LD_PRELOAD}, or {chosen.name}=0",
        (LD_PRELOAD,),
    )


def _names_libmpi(value: object) -> bool:
    return isinstance(value, str) and _LIBMPI.search(value) is not None


# Presets that the guide of an MPI family recommends, from ``recipes/tuning/presets.yaml``.


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


def merge_layers(
    library: Library, layers: Sequence[Layer], *, gpus: bool, compared: bool = False
) -> tuple[Setting, ...]:
    """Merge the layers, later over earlier, over the presets of the library's family.

    ``compared``: whether times are compared with those of other launches, as in a study or a validation.
    A variable with several names is one variable; it keeps the name that the last layer uses. Raises ``InvalidInput``
    with every variable that the library does not read, every invalid value of any layer, and every conflict.
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
    """The settings of one layer, by the main name of each variable, and its problems."""
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for name, value in layer.values.items():
        judged = judge(library.family, library.version, name, value)
        if isinstance(judged, Misfit):
            message = f"{judged.message} ({layer.origin})"
            problems.append(Problem(message, judged.expected, (name,), suggestion=judged.suggestion))
        elif (other := settings.get(judged.variable)) and other.value != judged.value:
            message = f"{other.name} and {name} are the same variable, with different values ({layer.origin})"
            problems.append(Problem(message, "one of them", (name,)))
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
    in_effect = {fit.variable: fit.value for fit in judged if isinstance(fit, Fit)}
    for preset in load_presets():
        if preset.applies(library, frozenset(switched_on), in_effect, gpus=gpus, compared=compared):
            yield Layer(f"preset of {library.family} ({preset.source})", preset.values)
            in_effect = {**{name: str(value) for name, value in preset.values.items()}, **in_effect}
