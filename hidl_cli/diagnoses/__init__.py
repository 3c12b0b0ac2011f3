"""Causes of failed runs, found in their output: known errors of schedulers, launchers, MPI, Python and frameworks.

``recipes/diagnoses/*.yaml`` lists them, each with example output and its source.
"""
