"""How do words become tokens and tokens words? Templates, tokenising, streaming detokeniser, stop strings."""
