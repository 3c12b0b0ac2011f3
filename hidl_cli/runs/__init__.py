"""Follow runs, read their metrics and judge them."""
