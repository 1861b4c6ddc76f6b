"""What has each person said, and what was answered? One SQLite file a person, on disk.

`schema` knows the tables and how an older file becomes one of today's; `tree`, `looking`, `deleting`, `shelf`, `growing`
and `transfer` are what is done inside one open file, as functions of a connection; `store` opens the right file and keeps the work off the
event loop; `saver` brings a growing answer to disk; `exchange` joins all that with the turns of the engine.
"""
