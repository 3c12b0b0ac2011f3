"""Checkpoints: each rank writes its own part. They can be loaded with any partitioning, and into plain Keras."""
