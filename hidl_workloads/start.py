"""Run a module of this package in a Python that it is not installed in.

::

    DIR/bin/python .../hidl_workloads/start.py MODULE [ARG...]

Of the directory above, only this package is importable if it lies there alone, as hidl places it for environments of
users; the environment's own packages stay as they are.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    above, package, _ = __file__.rsplit("/", 2)
    sys.path = [above, *(place for place in sys.path if place != f"{above}/{package}")]
    import runpy  # imported here, because this package might contain a module of the same name

    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
