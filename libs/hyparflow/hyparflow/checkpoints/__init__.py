"""Checkpoints: each rank writes its own part; loaded under any other partitions and replicas, and into Keras."""
