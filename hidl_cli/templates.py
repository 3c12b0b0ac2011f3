"""Jinja2 environments for the shipped ``templates/``, with built-in quoting for shells, Tcl, Lua and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from hidl_cli import paths
from hidl_cli.inputs.problems import visible
from hidl_cli.quoting import comment, lua, sh, sh_line, tcl, word


def render_script(template: str, values: Mapping[str, Any], directory: Path | None = None) -> str:
    """Render a shell script from a template in ``directory`` (default: hidl's own).

    Every ``{{ }}`` is quoted as a single shell word unless it passes through one of the filters ``words`` (several
    words), ``comment`` (text of a comment) or ``raw_name`` (name of a variable). Undefined values are errors.
    """
    return _render(template, values, sh, directory)


def render_modulefile(template: str, values: Mapping[str, Any]) -> str:
    """Render a modulefile in which every value is quoted as a single Tcl word."""
    return _render(template, values, tcl)


def render_configuration(template: str, values: Mapping[str, Any], directory: Path | None = None) -> str:
    """Render a daemon's configuration file; every value must be a plain word, because these files have no quoting."""
    return _render(template, values, word, directory)


def render_lua(template: str, values: Mapping[str, Any], directory: Path | None = None) -> str:
    """Render a Lua program in which each value is quoted as a string unless it passes through the filter ``number``."""
    return _render(template, values, lua, directory)


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """Render HTML in which every ``{{ }}`` except ``Markup`` is escaped and control characters are made visible."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.shipped() / "templates"),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    return pages.get_template(template).render(values)


def _render(
    template: str, values: Mapping[str, Any], quote: Callable[[str], str], directory: Path | None = None
) -> str:
    return environment(directory or paths.shipped() / "templates", quote).get_template(template).render(values)


@cache
def environment(directory: Path, quote: Callable[[str], str]) -> jinja2.Environment:
    """Return the environment for the templates in ``directory``, in which ``quote`` is applied to every ``{{ }}``."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(directory),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else quote(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    found.filters.update(
        words=lambda values: Markup(sh_line(values)),
        comment=lambda value: Markup(comment(str(value))),
        raw_name=_variable_name,
        commas=lambda values: Markup(",".join(word(str(value)) for value in values)),
        number=lambda value: Markup(int(value)),
        words_of_copy=_words_of_copy,
    )
    return found


def _words_of_copy(words: Sequence[str], hostfile: str, option: str) -> Markup:
    """Quote the command line of a concurrent copy, inserting the copy's host file, and its host after ``option``.

    The option precedes the launcher's other options: it follows ``srun`` or ``flux run``, for example.
    """
    quoted = ['"steps/$step/hosts"' if word == hostfile else sh(word) for word in words]
    at = next((number for number, word in enumerate(words) if word.startswith("-")), 1)
    return Markup(" ".join([*quoted[:at], *([f'{sh(option)}"$host"'] if option else []), *quoted[at:]]))


def _variable_name(name: str) -> Markup:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not a valid shell variable name")
    return Markup(name)
