"""Workloads, launch plans and job scripts: everything that precedes the submission of a run."""
