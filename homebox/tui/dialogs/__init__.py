"""Boxes over the screen that ask one thing and give one answer."""
