"""hidl's own distributions as Spack packages: their sources lie beside this repository, and need no download.

A package's variant ``source`` holds the SHA-256 over the names and contents of its source files (the first 32 digits).
It is part of the spec, so other sources are another installation, and a lock file names the sources that it was made
from: they are compared before anything is built. Spack fetches nothing, and needs nothing in a mirror.
"""

import os
import shutil

from spack.package import InstallError, join_path, run_before
from spack_repo.builtin.build_systems.python import PythonPackage
from spack_repo.hidl.source_tree import COMPILED


class OwnPackage(PythonPackage):
    """A package whose source is the class attribute ``own_source``, an ``OwnSource`` (source_tree)."""

    has_code = False  # nothing that Spack would fetch
    own_source = None

    @run_before("install")
    def copy_source(self):
        """Put the source into the stage. ``InstallError`` where it is not the one that the spec names."""
        wanted, source = self.spec.variants["source"].value, self.own_source
        if source.digest != wanted:
            raise InstallError(
                f"{self.name} was concretized with the source {wanted}, and {source.directory} is {source.digest}: "
                "use the hidl that made this spec, or concretize again"
            )
        for name in os.listdir(source.directory):
            origin, target = join_path(source.directory, name), join_path(self.stage.source_path, name)
            if os.path.isdir(origin):
                shutil.copytree(origin, target, ignore=shutil.ignore_patterns(COMPILED))
            else:
                shutil.copy2(origin, target)
