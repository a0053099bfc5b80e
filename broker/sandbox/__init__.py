"""Isolated places where untrusted programs run: one for the harness program, one for its tool code (HOST-02).

Must not know what an episode is. `supervisor`, `child`, `workers` and `protocol` run inside the sandbox,
where only the standard library exists, so this file imports nothing.
"""
