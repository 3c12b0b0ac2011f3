"""The life of a run: submit, follow, conclude, judge."""
