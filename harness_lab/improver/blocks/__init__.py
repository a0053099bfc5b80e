"""Pieces of program text that the rule improver assembles: ordinary functions, read as text."""
