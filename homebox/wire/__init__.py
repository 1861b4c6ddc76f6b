"""What is said between processes: `frames` (daemon and engine), `events` (daemon and its clients)."""
