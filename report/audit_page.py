"""The audit of a release as one self-contained HTML page (DATA-05).

Names and ids come from releases, so they are untrusted and escaped by the template engine. Must not know how
anything was measured.
"""

import os
import tempfile
from pathlib import Path

from report.pages import environment
from verifier.audit.flags import RULES
from verifier.audit.model import SPLIT_ORDER, Audit
from verifier.task import Split


def render(name: str, digest: str, audit: Audit) -> str:
    """The page as text; equal audits give equal pages."""
    counts = audit.balance.counts
    sizes: dict[Split, int] = {split: sum(row.of(split) for row in counts) for split in SPLIT_ORDER}
    splits: list[Split] = [split for split in SPLIT_ORDER if sizes[split]]
    used = {item.rule for split in audit.baselines for item in split.baselines}
    return (
        environment()
        .get_template("audit.html")
        .render(
            name=name,
            digest=digest,
            audit=audit,
            rules=RULES,
            shown_rules=[rule for rule in RULES if rule in used],
            splits=splits,
            sizes=sizes,
            largest=max(row.of(split) / sizes[split] for row in counts for split in splits),
            notes=[flag for flag in audit.flags if flag.level == "note"],
        )
    )


def write(name: str, digest: str, audit: Audit, path: Path) -> Path:
    """Write the page whole or not at all, and give back its path. OSError passes through."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".audit-", suffix=".html")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(render(name, digest, audit))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
