"""The embedded engine: one process that serves a Hugging Face causal model behind the completions API.

Token ids in, token ids and log-probabilities out (HOST-06). Must not know messages, templates or episodes.
Importing this package imports no torch; `broker.engine.engine` and what it uses do.
"""
