"""The content-addressed store and the catalog: what exists and who made it.

Owns digests, artifacts and the tables of runs, stages, measurements, decisions and handoffs.
Must not know what any stored thing means.
"""
