"""A run's directory, and the states of a run."""
