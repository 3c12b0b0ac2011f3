"""Software that is compiled against a stack after its wheels have been installed."""
