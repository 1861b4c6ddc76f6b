"""Which models are on disk? Pull, adopt, verify, list and remove; nothing here loads a model."""
