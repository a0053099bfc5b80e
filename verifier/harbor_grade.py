"""Copied into every exported Harbor task as tests/grade.py: grades /app/answer.txt offline, 1 or 0.

Standard library, and copies of the modules that grade here, below tests/grading. Must not know releases.
"""

import json
import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(_TESTS / "grading"))

from verifier.answer_format import AnswerFormat  # noqa: E402
from verifier.comparison import grade_text  # noqa: E402
from verifier.references import Reference  # noqa: E402


def main(answer: Path, logs: Path) -> None:
    """Write `logs`/reward.txt. No answer file is an answer of no text: 0."""
    stated = json.loads((_TESTS / "reference.json").read_text(encoding="utf-8"))
    reference = Reference(
        task="",
        answer=stated["answer"],
        absolute=stated["absolute"],
        relative=stated["relative"],
        unit=stated["unit"],
    )
    try:
        text = answer.read_bytes().decode("utf-8", "replace")
    except OSError:
        text = ""
    verdict = grade_text(AnswerFormat(stated["format"]), stated["options"], reference, text)
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "reward.txt").write_text(f"{int(verdict.correct)}\n", encoding="utf-8")
    print(f"format valid: {verdict.format_valid}, correct: {verdict.correct} ({verdict.reason})")


if __name__ == "__main__":
    main(Path("/app/answer.txt"), Path("/logs/verifier"))
