"""What can be typed? One file a command, everything heavy imported late."""
