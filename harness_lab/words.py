"""What the auxiliary says beside programs, scanned before a step keeps it (EVID-02, EVID-06, PROP-08).

A hypothesis, a rationale and the reason of a skip live on in the history that later proposals are shown, and
on pages. Words that hold a public string of Val or Test, or the mark of a private reference, are withheld
whole, and their candidate goes no further; an annotation with them is dropped (FB-06). The step goes on, as
it does after any other bad reply. The program beside them passes its own scan, where such a string stops the
run. Must not know references: of Val and Test it knows ids and prompts, of references the form of their mark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from harness_lab.canary import MARK
from harness_lab.improver.base import Proposal, Skip
from harness_lab.zones import readings, scan
from verifier.release import Release

IDENTITY: Final = "words/1"
"""Raised with every change of what is withheld."""
HOLDS_HELD_OUT: Final = "holds a string of Val or Test, or the mark of a reference"
WITHHELD: Final = f"[withheld: it {HOLDS_HELD_OUT}]"


def held_out_texts(release: Release) -> list[str]:
    """Ids and prompts of Val and Test: public, and yet nothing that an improver is ever shown."""
    tasks = (*release.split("val"), *release.split("test"))
    return [text for task in tasks for text in (task.id, task.prompt)]


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a plain value, as it is: JSON would escape its lines and quotation marks."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, Any]", value).values():
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from texts_in(item)


@dataclass(frozen=True)
class HeldOut:
    """The strings that no word of a proposal may hold."""

    texts: Sequence[str]
    """Ids and prompts of Val and Test."""
    train: Sequence[str] = ()
    """Prompts of Train: wording that they share with Val or Test says nothing of either."""
    public: str = ""
    """What the improver was shown, whose strings it may repeat."""

    @classmethod
    def of(cls, release: Release, public: Iterable[str] = ()) -> "HeldOut":
        train = [task.prompt for task in release.split("train")]
        return cls(held_out_texts(release), train, "\n".join(public))

    def stands_in(self, text: str) -> bool:
        """Whether it does, plainly or in a disguise that the scan of programs reads. Never raises."""
        if any(MARK.search(reading) for reading in readings(text)):
            return True
        # As a program too: words may be an expression that puts a string together. Without the public texts
        # first, for those are long and a finding is rare.
        return self._found(text, "") and (not self.public or self._found(text, self.public))

    def _found(self, text: str, public: str) -> bool:
        found = scan(text, sent=[text], prompts=self.train, held_out=self.texts, public=public)
        return any(item.kind == "held_out" for item in found)

    def cleaned(self, text: str) -> str:
        """The text, or `WITHHELD` in its place."""
        return WITHHELD if self.stands_in(text) else text


def clean_proposals(found: Sequence[Proposal | Skip], held_out: HeldOut) -> tuple[Proposal | Skip, ...]:
    """The proposals, and with `withheld` those of them whose words had to be replaced."""
    return tuple(_clean(item, held_out) for item in found)


def _clean(item: Proposal | Skip, held_out: HeldOut) -> Proposal | Skip:
    names = ("hypothesis", "rationale") if isinstance(item, Proposal) else ("reason",)
    words = {name: held_out.cleaned(str(getattr(item, name))) for name in names}
    if WITHHELD not in words.values():
        return item
    # Its replies repeat its words. They stay with the exchanges alone, which nothing later reads.
    counts = {name: value for name, value in item.protocol.items() if isinstance(value, int)}
    return item.model_copy(update={**words, "protocol": counts, "withheld": True})
