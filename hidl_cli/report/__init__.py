"""The report: one HTML page with results, verdicts and history of runs; and tables and plots for terminals."""
