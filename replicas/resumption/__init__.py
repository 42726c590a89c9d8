"""How an answer that a lost replica had begun is continued by this one, below vLLM's OpenAI layer.

`plan` decides, purely, from which token the engine goes on. `engine_client` stands between vLLM's serving classes and
the engine: it notes the tokens of each answer, and changes what the engine is asked when an answer is continued.
"""
