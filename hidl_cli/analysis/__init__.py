"""Statistics over samples: pure functions that read no files."""
