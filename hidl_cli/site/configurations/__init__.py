"""Draft a site file from the configuration files that a centre wrote for other tools."""
