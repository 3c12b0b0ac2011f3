"""Workloads and launch plans with their job scripts: everything about a run before it is submitted."""
