"""How fast are other engines on this machine? Installed apart, started alike, asked by the client that asks ours.

`run.py` is what `scripts/bench-peers` starts: it reads `catalogue.py` (who they are, with which settings), has
`install.py` make their environments, `serving.py` start one server at a time, and `table.py` say what came of it.
The `*_server.py` files run inside those environments and import nothing of homebox but `wrapper.py`.
"""
