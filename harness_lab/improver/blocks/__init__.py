"""Pieces of program text that the rule improver assembles. Ordinary functions, read as text, never run here."""
