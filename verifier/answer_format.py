"""The formats of an answer. Apart from `verifier/task.py`, so that the grader's process needs no pydantic."""

from enum import StrEnum


class AnswerFormat(StrEnum):
    """How the text inside `<answer>` is read (DATA-04)."""

    LETTER = "letter"
    """An option letter, A being the first option."""
    SYMBOL = "symbol"
    """A gene symbol, compared without regard to case."""
    RSID = "rsid"
    """A dbSNP id, compared exactly."""
    NUMBER = "number"
    """A number within the reference's tolerance."""
    SET = "set"
    """Several items in any order, each compared without regard to case."""
    TEXT = "text"
    """Free text, equal after normalisation of case and white space."""
    FILES = "files"
    """No answer in words: what the work left in /work is checked, whatever text is submitted."""
