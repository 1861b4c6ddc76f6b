"""How is it computed? Attention and the paged KV cache; `reference` is the oracle for all others."""
