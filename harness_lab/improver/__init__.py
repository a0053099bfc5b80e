"""Improvers: from public evidence and a parent program to proposals.

Must not know references or Val traces.
"""
