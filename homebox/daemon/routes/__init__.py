"""What does each dialect look like on the wire? One file a dialect; all of them end in `daemon.turns`."""
