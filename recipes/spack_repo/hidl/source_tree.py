"""The source trees of hidl's own distributions, which lie beside this repository. It imports nothing of Spack."""

import hashlib
import os
import re

COMPILED = "__pycache__"
_ABSENT = "absent"


class OwnSource:
    """The source tree of one distribution: ``folder`` below the directory that holds ``recipes``.

    ``beside`` is where it lies in an installed hidl, where that is another place. ``version_file`` is the file that
    holds the line ``__version__ = "..."``. Where there is no such tree, ``digest`` is ``absent`` and ``version`` 0.
    """

    def __init__(self, folder, version_file, beside=None):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        places = [os.path.normpath(os.path.join(root, place)) for place in (folder, beside) if place]
        found = [place for place in places if os.path.isfile(os.path.join(place, "pyproject.toml"))]
        self.directory = found[0] if found else places[0]
        self.digest = _digest(self.directory)[:32] if found else _ABSENT
        self.version = _version(os.path.join(self.directory, version_file)) if found else "0"


def _digest(directory):
    """The same number as that of hidl's own wheels (hidl_cli/stack/own_wheel.py)."""
    total = hashlib.sha256()
    for path in sorted(_files(directory), key=lambda path: path.split(os.sep)):
        with open(os.path.join(directory, path), "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        total.update("{}\0{}\n".format(path.replace(os.sep, "/"), content).encode("utf-8"))
    return total.hexdigest()


def _files(directory):
    for parent, folders, names in os.walk(directory):
        folders[:] = [folder for folder in folders if folder != COMPILED]
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), directory)


def _version(file):
    with open(file, encoding="utf-8") as lines:
        return re.search(r'^__version__ = "([^"]+)"$', lines.read(), re.MULTILINE).group(1)
