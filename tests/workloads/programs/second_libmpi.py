"""Importing this maps a second MPI library into the process, as a package with a copy of its own does."""

from __future__ import annotations

import ctypes
import os

ctypes.CDLL(os.environ["SECOND_LIBMPI"])
