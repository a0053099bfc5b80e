"""One episode under the host's control: provenance, budgets, clipping, engines, sandboxes, record.

Must not know how harnesses evolve, how models learn, or Prefect.
"""
