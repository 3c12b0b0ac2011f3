"""The effective tuning of a run: the value of each variable, and its origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.mpi import Library
from hidl_cli.tuning.judge import Fit, Misfit, judge
from hidl_cli.tuning.preload import conflict, preloads_libmpi
from hidl_cli.tuning.presets import load_presets
from hidl_cli.tuning.settings import LD_PRELOAD, Layer, Setting


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
