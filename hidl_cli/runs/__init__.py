"""Follow runs, read their metrics and determine their verdicts."""
