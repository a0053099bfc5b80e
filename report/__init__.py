"""What people look at: the HTML report, figures, terminal tables and progress.

Must not know how the numbers are produced.
"""
