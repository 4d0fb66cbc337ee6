"""How OpenAI's and Anthropic's APIs word questions and answers."""
