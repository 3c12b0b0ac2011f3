"""Input files: YAML with positions, validation errors that point at the text, and the directory overlay."""
