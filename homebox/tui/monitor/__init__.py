"""What does the monitor's screen look like, and what do its keys do?

`screen.py` is the screen, `feed.py` the thread that hears the daemon; `wide.py`, `kvmap.py` and `panes.py` make lines of
figures and know no widget; `widgets.py` draws lines. `app.py` is `homebox top`.
"""
