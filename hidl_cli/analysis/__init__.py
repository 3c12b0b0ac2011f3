"""Statistics on samples. All functions are pure and read no files."""
