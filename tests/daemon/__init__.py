"""Does the daemon keep its promises? Real sockets, real processes, an engine that is scripted."""
