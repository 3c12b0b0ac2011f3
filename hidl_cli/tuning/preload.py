"""``LD_PRELOAD`` of the MPI library against ``MV2_SUPPORT_DL``: one of them, never both.

A Python program loads CUDA before MPI, too early for MVAPICH2-GDR to track GPU memory. There are two remedies. The user
guide of MVAPICH2-GDR 2.3.7 (section 7.3) requires ``MV2_SUPPORT_DL=1`` without preloading; known job scripts set it
since 2.3.4. Tutorials (MUG 2022), MPI4Dask and MPI4DL preload ``libmpi.so`` and do not set it. hidl sets the variable,
a preset of the family, since 2.3.4 and if the version is unknown, and preloads before. With ``MV2_SUPPORT_DL=0`` it
preloads in any version; if the user preloads ``libmpi.so``, it does not set the variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hidl_cli.errors import Problem
from hidl_cli.mpi import Library
from hidl_cli.tuning.settings import LD_PRELOAD, Setting

_DL = ("MV2_SUPPORT_DL", "MV2_SUPPORT_TENSOR_FLOW")  # the second is the older name
_GPUS = ("MV2_USE_CUDA", "MV2_USE_ROCM")
_LIBMPI = re.compile(r"(^|[\s:/])libmpi(cxx|ch)?\.so[0-9.]*($|[\s:])")


def preloads(library: Library, settings: Iterable[Setting]) -> bool:
    """Whether the launcher must preload the library's ``libmpi.so`` into the ranks.

    Only MVAPICH2-GDR with GPUs and without ``MV2_SUPPORT_DL``, and only if it is not preloaded already.
    """
    values = {setting.name: setting.value for setting in settings}
    if library.family != "mvapich2-gdr" or not any(values.get(name) == "1" for name in _GPUS):
        return False
    return not preloads_libmpi(values, library.environment) and not any(values.get(name) == "1" for name in _DL)


def preloads_libmpi(values: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    """Whether the tuning (``values``) or the site's environment of the library preloads ``libmpi.so``."""
    return any(_names_libmpi(where.get(LD_PRELOAD)) for where in (values, environment))


def conflict(settings: Iterable[Setting], environment: Mapping[str, str]) -> Problem | None:
    """A problem if both remedies are set; ``environment``: the site's for the library."""
    by_name = {setting.name: setting for setting in settings}
    chosen = next((by_name[name] for name in _DL if name in by_name and by_name[name].value == "1"), None)
    preload = by_name.get(LD_PRELOAD)
    if chosen is None:
        return None
    value, origin = environment.get(LD_PRELOAD), "the site's environment for this library"
    if preload is not None:
        value, origin = preload.value, preload.origin
    if not _names_libmpi(value):
        return None
    return Problem(
        f"{chosen.name}=1 ({chosen.origin}) and {LD_PRELOAD} of libmpi.so ({origin}) exclude each other",
        f"one of them: no {LD_PRELOAD}, or {chosen.name}=0",
        (LD_PRELOAD,),
    )


def _names_libmpi(value: object) -> bool:
    return isinstance(value, str) and _LIBMPI.search(value) is not None
