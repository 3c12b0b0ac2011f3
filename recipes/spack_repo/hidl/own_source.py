"""hidl's own distributions as Spack packages: their sources lie beside this repository, and need no download.

A package's variant ``source`` holds the SHA-256 over the names and contents of its source files (the first 32 digits).
It is part of the spec, so other sources are another installation, and a lock file names the sources that it was made
from: they are compared before anything is built. Spack fetches nothing, and needs nothing in a mirror.
"""

import hashlib
import os
import re
import shutil

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import InstallError, join_path, run_before

_COMPILED = "__pycache__"
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


class OwnPackage(PythonPackage):
    """A package whose source is the class attribute ``own_source``, an ``OwnSource``."""

    has_code = False  # nothing that Spack would fetch
    own_source = None

    @run_before("install")
    def copy_source(self):
        """Put the source into the stage. ``InstallError`` where it is not the one that the spec names."""
        wanted, source = self.spec.variants["source"].value, self.own_source
        if source.digest != wanted:
            raise InstallError(
                "{0} was concretized with the source {1}, and {2} is {3}: use the hidl that made this spec, or "
                "concretize again".format(self.name, wanted, source.directory, source.digest)
            )
        for name in os.listdir(source.directory):
            origin, target = join_path(source.directory, name), join_path(self.stage.source_path, name)
            if os.path.isdir(origin):
                shutil.copytree(origin, target, ignore=shutil.ignore_patterns(_COMPILED))
            else:
                shutil.copy2(origin, target)


def _digest(directory):
    """The same number as that of hidl's own wheels (hidl_cli/stack/own_wheel.py)."""
    total = hashlib.sha256()
    for path in sorted(_files(directory), key=lambda path: path.split(os.sep)):
        with open(os.path.join(directory, path), "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        total.update("{0}\0{1}\n".format(path.replace(os.sep, "/"), content).encode("utf-8"))
    return total.hexdigest()


def _files(directory):
    for parent, folders, names in os.walk(directory):
        folders[:] = [folder for folder in folders if folder != _COMPILED]
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), directory)


def _version(file):
    with open(file, encoding="utf-8") as lines:
        return re.search(r'^__version__ = "([^"]+)"$', lines.read(), re.MULTILINE).group(1)
