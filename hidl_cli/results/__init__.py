"""Statistics, scaling, verdicts, history."""
