"""Readers of other people's benchmarks, one module a format; `verifier/draft.py` keeps what they give."""
