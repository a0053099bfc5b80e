"""What grading raises beside ReleaseError. Apart, so that a room that only catches it imports no grader."""


class GraderLost(Exception):
    """The grader's process died or hung, and so did the one after it. Nothing may be concluded."""
