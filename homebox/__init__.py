"""homebox: one GPU box that a whole household uses at once. Start reading at docs/architecture.md."""

__version__ = "0.1.0"
