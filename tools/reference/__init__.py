"""The reference of the documentation, made from the code each time that the documentation is built.

Nothing of it lies in the repository, so that nothing of it can be out of step. ``tools/docs_hooks.py`` hands the pages
to MkDocs.
"""

from __future__ import annotations

from . import codes, commands, json_documents, logs, python_api, rules, schemas, sites, variables

_MAKERS = (codes, commands, json_documents, logs, python_api, rules, schemas, sites, variables)


def pages() -> dict[str, str]:
    """All generated pages: path below ``docs/`` -> Markdown."""
    return {path: text for maker in _MAKERS for path, text in maker.pages().items()}
