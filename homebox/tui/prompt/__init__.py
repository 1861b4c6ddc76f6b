"""Where does a person type? The prompt at the foot of the chat screen: `prompt.Prompt`, and what it is made of."""
