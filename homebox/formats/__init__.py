"""What is in a file? Bounds-checked readers of model files; plain bytes and integers, no torch."""
