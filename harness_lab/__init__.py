"""The inner recursion: the program around the model is checked, improved, compared and inherited.

Must not know references, Val or Test traces, or Prefect.
"""
