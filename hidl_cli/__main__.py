"""The ``hidl`` command's entry."""

from __future__ import annotations

import os
import sys

from hidl_cli import __version__


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] == ["--version"]:  # answered before anything is imported
        print(f"hidl {__version__}")
        return
    from hidl_cli.commands import completion

    if completion.asked(os.environ):
        text, status = completion.answer(os.environ)
        sys.stdout.write(text)
        sys.exit(status)
    from hidl_cli.commands.app import app

    app()


if __name__ == "__main__":
    main()
