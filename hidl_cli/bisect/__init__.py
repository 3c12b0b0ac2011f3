"""Bisect: find which of the changes between a good and a bad run explains the slowdown."""
