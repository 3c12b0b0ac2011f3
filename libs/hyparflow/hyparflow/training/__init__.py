"""Training, evaluation and prediction in Keras' words: data, metrics, callbacks, and ranks that fail."""
