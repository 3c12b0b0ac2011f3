"""``LD_PRELOAD`` of the MPI library against ``MV2_SUPPORT_DL``: one of them, never both.

A Python program loads CUDA before MPI, so that MVAPICH2-GDR comes too late to see its memory. There are two remedies.
The user guide of MVAPICH2-GDR 2.3.7 (section 7.3) asks for ``MV2_SUPPORT_DL=1``, and says not to preload then; job
scripts that set it are known from 2.3.4 on. Tutorials (MUG 2022), MPI4Dask and MPI4DL preload ``libmpi.so`` and do not
set it. So: from 2.3.4 on, and where the version is unknown, the variable (a preset of the family); before, preloading.
Who sets ``MV2_SUPPORT_DL=0`` gets preloading with any version, and who preloads by hand does not get the variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hidl_cli.inputs.findings import Finding
from hidl_cli.mpi import Library
from hidl_cli.tuning.layers import LD_PRELOAD, Setting

_DL = ("MV2_SUPPORT_DL", "MV2_SUPPORT_TENSOR_FLOW")  # the second is the older name
_GPUS = ("MV2_USE_CUDA", "MV2_USE_ROCM")
_LIBMPI = re.compile(r"(^|[\s:/])libmpi(cxx|ch)?\.so[0-9.]*($|[\s:])")


def preloads(library: Library, settings: Iterable[Setting]) -> bool:
    """Must the launcher preload the library's ``libmpi.so`` into the ranks?

    Only MVAPICH2-GDR with GPUs and without ``MV2_SUPPORT_DL``, and only where nobody preloads it already.
    """
    values = {setting.name: setting.value for setting in settings}
    if library.family != "mvapich2-gdr" or not any(values.get(name) == "1" for name in _GPUS):
        return False
    return not by_hand(values, library.environment) and not any(values.get(name) == "1" for name in _DL)


def by_hand(values: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    """Does somebody preload ``libmpi.so``: in the tuning, or in what the site sets for the library?"""
    return any(_names_libmpi(where.get(LD_PRELOAD)) for where in (values, environment))


def conflict(settings: Iterable[Setting], environment: Mapping[str, str]) -> Finding | None:
    """The finding where both remedies are taken; ``environment``: what the site sets for the library."""
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
    return Finding(
        f"{chosen.name}=1 ({chosen.origin}) and {LD_PRELOAD} of libmpi.so ({origin}) exclude each other",
        f"one of them: no {LD_PRELOAD}, or {chosen.name}=0",
        (LD_PRELOAD,),
    )


def _names_libmpi(value: object) -> bool:
    return isinstance(value, str) and _LIBMPI.search(value) is not None
