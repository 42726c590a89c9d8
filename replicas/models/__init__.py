"""Models: where an engine's weights and tokenizer come from. Nothing here runs a model or reaches a network."""
