"""A run's directory: the truth about one run, and the states that it goes through."""
