"""Lists to choose from: conversations, what a search found, models."""
