"""What MkDocs is given beside the files in docs/: the generated reference, and the READMEs of other directories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from reference import pages  # MkDocs looks for modules beside this file

_ROOT = Path(__file__).parents[1]
#: Files that pages link to: they lie where people look for them, and are pages of the documentation too.
_READMES = {
    "CONTRIBUTING.md": "repository/contributing.md",
    "STYLE.md": "repository/style.md",
    "CHANGELOG.md": "repository/changelog.md",
    "SECURITY.md": "repository/security.md",
    "benchmarks/README.md": "repository/benchmarks.md",
    "libs/hyparflow/README.md": "repository/hyparflow.md",
    "libs/mpi4c10d/README.md": "repository/mpi4c10d.md",
    "libs/mpi4dask/README.md": "repository/mpi4dask.md",
    "libs/mpitraffic/README.md": "repository/mpitraffic.md",
}
_UP = r"(?<=\]\()(?:\.\./)+"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files of docs/."""
    readmes = {to: (_ROOT / of).read_text(encoding="utf-8") for of, to in _READMES.items()}
    for path, text in {**pages(), **readmes}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between docs/ and the READMEs elsewhere, as they are among the pages."""
    if page.file.src_uri in _READMES.values():
        for of, to in _READMES.items():  # files of the root link each other by name
            markdown = markdown.replace(f"]({of}", f"](../{to}")
        return re.sub(r"(?<=\]\()(?:\.\./)*docs/", "../", markdown)
    for of, to in _READMES.items():
        markdown = re.sub(_UP + re.escape(of), f"../{to}", markdown)
    return markdown
