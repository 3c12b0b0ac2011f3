"""Write hidl_workloads/parameters.py: the parameters of the shipped workloads as dataclasses, from recipes/workloads.

Usage: python tools/parameters.py     (or: make parameters)

The programs run where there is no YAML library and no hidl, so they read the recipes in this form. A base of several
recipes becomes a base class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hidl_cli import process

REPOSITORY = Path(__file__).parent.parent
RECIPES = REPOSITORY / "recipes" / "workloads"
#: Reads OMB's own options, such as -m 8:4096: its table of options is OMB's, and recipes give some under long names.
_OWN_OPTIONS = "hidl_workloads.omb"
_PACKAGE = "hidl_workloads."
_TYPES = {"int": "int", "float": "float", "str": "str", "bool": "bool"}

_HEAD = '''\
"""The parameters of the workloads, as their programs read them: types, defaults, limits, units, help.

Generated from recipes/workloads by tools/parameters.py; change the recipes, then run ``make parameters``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hidl_workloads.arguments import parameter
'''

Recipe = Mapping[str, Any]


def write(target: Path) -> None:
    """Write the module of all recipes to ``target``, formatted."""
    recipes = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.yaml"))}
    target.write_text("\n\n".join([_HEAD, *(_class(name, recipes) for name in _in_order(recipes))]), encoding="utf-8")
    process.run([sys.executable, "-m", "ruff", "format", "--config", REPOSITORY / "pyproject.toml", target])


def class_name(recipe: str) -> str:
    """Return the class of a recipe: ``KmeansSweep`` of ``kmeans-sweep``, ``Training`` of the base ``_training``."""
    return "".join(word.capitalize() for word in recipe.strip("_").split("-"))


def _in_order(recipes: Mapping[str, Recipe]) -> list[str]:
    """Return the recipes of programs that read ``--name=value``, each after the recipe that it extends."""
    found: list[str] = []
    for name, recipe in recipes.items():
        program = recipe.get("program", {})
        module = program.get("module", "")
        if module.startswith(_PACKAGE) and module != _OWN_OPTIONS and "arguments" not in program:
            found += [each for each in reversed(list(_chain(name, recipes))) if each not in found]
    return found


def _chain(name: str, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    """Yield the recipe, what it extends, and so on."""
    following: str | None = name
    while following is not None:
        yield following
        following = recipes[following].get("extends")


def _class(name: str, recipes: Mapping[str, Recipe]) -> str:
    recipe = recipes[name]
    base = f"({class_name(recipe['extends'])})" if "extends" in recipe else ""
    title = recipe.get("title", f"Parameters of all recipes that extend {name}")
    fields = [_field(parameter, _merged(parameter, name, recipes)) for parameter in recipe.get("parameters", {})]
    body = [f'    """{title}."""', *([""] if fields else []), *fields]
    return "\n".join(["@dataclass(frozen=True)", f"class {class_name(name)}{base}:", *body]) + "\n"


def _merged(parameter: str, name: str, recipes: Mapping[str, Recipe]) -> Mapping[str, Any]:
    """Return all keys of a parameter, those of a recipe laid over those of the recipe that it extends."""
    merged: dict[str, Any] = {}
    for each in reversed(list(_chain(name, recipes))):
        merged |= recipes[each].get("parameters", {}).get(parameter, {})
    return merged


def _field(name: str, declared: Mapping[str, Any]) -> str:
    choices = declared.get("choices")
    kind = f"Literal[{', '.join(map(repr, choices))}]" if choices else _TYPES[declared["type"]]
    default = float(declared["default"]) if declared["type"] == "float" else declared["default"]
    keywords = [f"{key}={declared[key]!r}" for key in ("min", "max", "unit", "help") if key in declared]
    return f"    {name}: {kind} = parameter({', '.join([repr(default), *keywords])})"


if __name__ == "__main__":
    write(REPOSITORY / "hidl_workloads" / "parameters.py")
