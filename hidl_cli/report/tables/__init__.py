"""Results as tables for terminals."""
