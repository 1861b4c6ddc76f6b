"""What is saved of a household, and how does it come back? Files only: it needs no daemon and imports none."""
