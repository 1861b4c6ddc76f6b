"""What is computed? One decoder configured by data, and the loader that fills it."""
