"""A source archive of a C extension, small enough to be compiled in a test."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.stack.conftest import recipe

SETUP = """\
from setuptools import Extension, setup
{before}
setup(name="tinyext", version="1.0", ext_modules=[Extension("tinyext", ["tinyext.c"])])
"""
CODE = """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tinyext", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_tinyext(void) {
    PyObject *it = PyModule_Create(&module);
    PyModule_AddStringConstant(it, "__version__", "as it was");
    return it;
}
"""
PATCH = """\
Say that it was patched

diff --git a/tinyext.c b/tinyext.c
--- a/tinyext.c
+++ b/tinyext.c
@@ -5 +5 @@
-    PyModule_AddStringConstant(it, "__version__", "as it was");
+    PyModule_AddStringConstant(it, "__version__", "patched");
"""


class Tiny:
    """The stack ``tiny``: mpi, and the C extension, which is compiled from an archive in a directory of its own."""

    def __init__(self, hidl: Hidl, place: Path) -> None:
        self.sources = place / "sources"
        self.hidl = Hidl(hidl.environment | {"HIDL_SOURCES": str(self.sources)})
        self.archive = self.sources / "tinyext-1.0.tar.gz"

    def write(self, *, before: str = "", code: str = CODE, **keys: object) -> None:
        """Write the archive and the recipe, whose build has ``keys``."""
        self.sources.mkdir(exist_ok=True)
        # Without the time of day in it, the same content is the same archive.
        with gzip.GzipFile(self.archive, "wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
            for name, text in (("setup.py", SETUP.format(before=before)), ("tinyext.c", code)):
                member = tarfile.TarInfo(f"tinyext-1.0/{name}")
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        build = {
            "name": "tinyext",
            "version": "1.0",
            "source": {"file": self.archive.name, "sha256": digest},
            "requires": {"setuptools": "==80.9.0"},
            "programs": ["cc"],
            "against": ["mpich"],
        }
        advisory = {"id": "CVE-0000-1", "text": "it is tiny", "url": "https://example.org/1"}
        verify = {"imports": ["tinyext"]}
        recipe(
            self.hidl, "tiny", extends="mpi", packages={}, builds=[build | keys], advisories=[advisory], verify=verify
        )

    def write_patch(self, text: str = PATCH) -> None:
        """Put a patch into the user's folder ``tiny``."""
        folder = self.hidl.config / "patches" / "tiny"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "1-version.patch").write_text(text)


@pytest.fixture
def tiny(hidl: Hidl, tmp_path: Path) -> Tiny:
    """With a cache of builds of its own."""
    return Tiny(Hidl(hidl.environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")}), tmp_path)
