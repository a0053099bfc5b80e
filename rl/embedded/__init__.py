"""The embedded trainer: one process, one torch module, rollouts and updates in turn.

Must not know how proposals are made, or Prefect.
"""
