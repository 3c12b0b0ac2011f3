"""Jinja2 over the shipped ``templates/``, with the borders to shells, to Tcl and to HTML built in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from hidl_cli import paths
from hidl_cli.inputs.findings import visible
from hidl_cli.quoting import comment, sh, sh_line, tcl, word


def render_script(template: str, values: Mapping[str, Any]) -> str:
    """Render a shell script.

    Whatever a ``{{ }}`` prints is quoted as one shell word, unless it passed through one of the filters ``words``
    (several words), ``comment`` (text of a comment) or ``raw_name`` (a variable's name). An undefined value is an
    error.
    """
    return _render(template, values, sh)


def render_modulefile(template: str, values: Mapping[str, Any]) -> str:
    """Render a modulefile: as ``render_script``, but each value is quoted as one word of Tcl."""
    return _render(template, values, tcl)


def render_configuration(template: str, values: Mapping[str, Any]) -> str:
    """Render a configuration file of a daemon: each value must be one plain word, for these files know no quoting."""
    return _render(template, values, word)


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """Render HTML: whatever a ``{{ }}`` prints is escaped, its control characters made visible, but for ``Markup``."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.shipped() / "templates"),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    return environment.get_template(template).render(values)


def _render(template: str, values: Mapping[str, Any], quote: Callable[[str], str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.shipped() / "templates"),
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else quote(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(
        words=lambda values: Markup(sh_line(values)),
        comment=lambda value: Markup(comment(str(value))),
        raw_name=_variable_name,
        words_of_copy=_words_of_copy,
    )
    return environment.get_template(template).render(values)


def _words_of_copy(words: Sequence[str], hostfile: str, option: str) -> Markup:
    """A launch as ``words``, but with the host file of the copy, and its host as the value of ``option`` (if any)."""
    quoted = ['"steps/$step/hosts"' if word == hostfile else sh(word) for word in words]
    return Markup(" ".join([quoted[0], *([f'{sh(option)}="$host"'] if option else []), *quoted[1:]]))


def _variable_name(name: str) -> Markup:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is no name of a shell variable")
    return Markup(name)
