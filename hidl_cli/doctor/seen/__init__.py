"""Causes that only output shows: known error texts of schedulers, launchers, MPI, Python and the frameworks.

``recipes/diagnoses/*.yaml`` holds them as data, each with an example of the text and its source.
"""

from hidl_cli.doctor.seen.matching import causes
from hidl_cli.doctor.seen.runs import causes_of

__all__ = ["causes", "causes_of"]
