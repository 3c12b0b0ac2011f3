"""Keras on TensorFlow."""
