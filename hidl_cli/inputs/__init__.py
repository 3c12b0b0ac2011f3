"""Files that people write: YAML with positions, findings with a caret, the overlay of directories."""
