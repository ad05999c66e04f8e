"""Token after token: generation, prompts of text, and weights laid out for one token at a time."""
