"""What does a person see whose terminal can be drawn on? The chat screen and the monitor, as Textual widgets.

Everything that is true about a conversation comes from `client/`; this package draws it, and turns keys into calls of
the client. It is the only one that imports textual, and it is imported only once a screen is really opened.
"""
