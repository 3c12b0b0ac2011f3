"""Training, evaluation and prediction with Keras' interface: data, metrics, callbacks, and failing ranks."""
