"""How much memory will a model take, and how many tokens of conversation does the rest hold? Pure numbers, no tensors."""
