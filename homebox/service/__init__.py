"""homebox as a service of the machine: its units, and what is done with them. Imports nothing of the daemon."""
