"""Frozen task releases: public tasks, private references, answer formats, grading, importers.

Must not know models, harnesses or Prefect.
"""
