"""Placements, allocations and launchers: everything between a plan and the command that starts its ranks."""
