"""Results as pictures, drawn by Matplotlib."""
