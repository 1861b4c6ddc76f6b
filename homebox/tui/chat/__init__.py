"""The screen on which a person talks with a model: the column of messages, its lines above and below, the screen."""
