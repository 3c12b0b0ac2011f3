"""Capsules: one file that holds what a run was, so that it can run again elsewhere, or later."""
