"""What an improver says is scanned as its program is: no held-out string outlives the step (EVID-06)."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.harness import Harness
from harness_lab.improver.base import Proposal, Skip
from harness_lab.words import WITHHELD, HeldOut, clean_proposals
from tests.fixtures.episodes import release

CANARY = "rinr-canary-0123456789abcdef"
TRAIN, VAL, TEST = (release().split(split)[0] for split in ("train", "val", "test"))
LONG = (
    "Which of the nine listed proteins binds to the long strand of Quex when zinc is absent and the buffer "
    "holds no salt?"
)


def held_out(public: str = "") -> HeldOut:
    return HeldOut.of(release(), [public])


def proposal(hypothesis: str = "look first", rationale: str = "it was not looked up") -> Proposal:
    return Proposal(
        harness=Harness(code="def run(task, api): ..."),
        hypothesis=hypothesis,
        rationale=rationale,
        evidence_ids=("e0:0", "e1:0"),
        protocol={"calls": 2, "said": [hypothesis], "problems": [rationale]},
    )


def disguises(text: str) -> dict[str, str]:
    half = len(text) // 2
    return {
        "as it is": f"As in {text}, look at the shelf.",
        "other white space": "  \n".join(text.split()),
        "other case": text.upper(),
        "invisible letters": "\u200b".join(text),
        "full width": "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
        "backwards": text[::-1],
        "base64": f"see {base64.b64encode(text.encode()).decode()}",
        "hexadecimal": text.encode().hex(),
        "in pieces": f"{text[:half]!r} + {text[half:]!r}",
        "a comment": f"# {text}",
    }


@pytest.mark.spec("EVID-06")
@pytest.mark.parametrize("disguise", list(disguises("x y")))
@pytest.mark.parametrize("text", [VAL.id, TEST.id, VAL.prompt, TEST.prompt])
def test_a_held_out_string_in_a_hypothesis_is_found_in_every_disguise(text: str, disguise: str) -> None:
    assert held_out().stands_in(disguises(text)[disguise])


@pytest.mark.spec("EVID-02")
@pytest.mark.parametrize("disguise", ["as it is", "invisible letters", "full width", "base64", "hexadecimal"])
def test_the_mark_of_a_reference_is_found(disguise: str) -> None:
    assert held_out().stands_in(disguises(CANARY)[disguise])


@pytest.mark.spec("EVID-06")
def test_a_long_quotation_of_one_held_out_prompt_is_found_and_shared_wording_is_not() -> None:
    assert HeldOut([LONG]).stands_in("because " + " ".join(LONG.split()[2:]))
    assert not HeldOut([LONG]).stands_in(" ".join(LONG.split()[:10]))
    assert not HeldOut([LONG], train=[LONG + " Say why."]).stands_in(" ".join(LONG.split()[2:]))


@pytest.mark.spec("EVID-06")
@pytest.mark.parametrize(
    "text",
    [
        "Showing the tables' columns after a failed call lets the model repair it.",
        f"From failures on {TRAIN.id}: {TRAIN.prompt}",
        "",
        "d\ud800f",
    ],
)
def test_ordinary_words_and_train_strings_pass(text: str) -> None:
    assert held_out().cleaned(text) == text


def test_what_the_improver_was_shown_it_may_repeat() -> None:
    assert held_out().stands_in(f"see {VAL.id}")
    assert not held_out(public=f"a column named {VAL.id}").stands_in(f"see {VAL.id}")


@pytest.mark.spec("EVID-06", "PROP-08")
@pytest.mark.parametrize("place", ["hypothesis", "rationale"])
def test_words_are_withheld_whole_and_nothing_of_them_stays_in_the_proposal(place: str) -> None:
    bad = proposal(**{place: f"as in {TEST.prompt}"})
    kept, good = clean_proposals([bad, proposal()], held_out())
    assert isinstance(kept, Proposal)
    assert getattr(kept, place) == WITHHELD
    assert kept.withheld
    assert kept.protocol == {"calls": 2}
    assert kept.harness == bad.harness
    assert TEST.prompt.split("\n")[0] not in kept.model_dump_json()
    assert good == proposal()


@pytest.mark.spec("EVID-06", "PROP-08")
def test_the_reason_of_a_skip_is_withheld_too() -> None:
    [kept] = clean_proposals([Skip(reason=f"{VAL.id} is out of reach")], held_out())
    assert (kept.withheld, isinstance(kept, Skip) and kept.reason) == (True, WITHHELD)
    skip = Skip(kind="failed", reason="unknown command 'x'")
    assert clean_proposals([skip], held_out()) == (skip,)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_no_text_makes_the_scan_raise(text: str) -> None:
    assert HeldOut(["gwas-cccc"]).stands_in(f"{text} gwas-cccc")
    HeldOut(["gwas-cccc", text], [text], text).cleaned(text)
