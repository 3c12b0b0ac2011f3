"""``python -m mpitraffic``."""

from __future__ import annotations

import sys

from mpitraffic.commandline import main

if __name__ == "__main__":
    sys.exit(main())
