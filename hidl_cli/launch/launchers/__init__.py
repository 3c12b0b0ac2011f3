"""One module a launcher, registered by name."""
