"""Assignment of a model to partitions, its costs, and the resulting plan."""
