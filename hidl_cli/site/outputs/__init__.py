"""Outputs of programs that people saved by hand: which program's each is, by what is in it, and what it tells."""
