"""What steps took: timelines in Chrome's trace format, and TensorBoard scalars."""
