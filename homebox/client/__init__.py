"""What every front end needs to speak with the daemon: a connection, an event stream, a reducer, a sanitiser."""
