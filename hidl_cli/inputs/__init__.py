"""Files that people write: YAML with positions, problems with a caret, the overlay of directories."""
