"""``python -m hyparflow``."""

from __future__ import annotations

import sys


def main() -> int:
    """The command `hyparflow`; gives the exit code."""
    from hyparflow.commandline import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
