"""Reports of runs: an HTML page with results, verdicts and histories, and tables and plots for terminals."""
