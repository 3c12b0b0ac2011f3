"""Bisect: find which of the changes between a good and a bad run explains that it became slower."""
