"""Speed, as ratios within one run: the two sides of every comparison are measured in turn on the same machine."""
