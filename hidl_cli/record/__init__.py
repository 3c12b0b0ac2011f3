"""The directory and the state of a run."""
