"""Fails in the way that its first argument names."""

from __future__ import annotations

import os
import resource
import signal
import sys


def main(how: str) -> None:
    """One way to fail; none for an unknown one."""
    if how == "module":
        __import__("no_such_module")
    elif how == "full":
        with open("/dev/full", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write("x" * 100_000)
    elif how == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        kept = [open(os.devnull) for _ in range(64)]  # noqa: PTH123, SIM115
        print(len(kept))
    elif how == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        print(len(bytearray(2**34)))
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "bus":
        os.kill(os.getpid(), signal.SIGBUS)
    elif how == "escapes":
        sys.stderr.write("\x1b]0;owned\x07/dev/sda: \x1b[2JNo space left on device\n")
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1])
