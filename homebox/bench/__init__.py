"""How fast is it, against what? Load generators and reports; never imported by the product."""
