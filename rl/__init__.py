"""The outer recursion: rows, GRPO, trainers, export and the proof that an export loads.

Must not know how harnesses are proposed, or Prefect.
"""
