"""How fast is it, against what? Load generators and reports; `homebox bench` imports what it needs, nothing else does."""
