"""Workloads, launch plans, run directories and their life."""
