"""The index over run directories: what was measured, where and when."""
