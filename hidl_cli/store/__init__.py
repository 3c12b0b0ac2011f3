"""A database of measurements, indexed from run directories."""
