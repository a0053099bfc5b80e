"""Train strings are refused where they run or are sent, and noticed in documentation; held-out ones alarm."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_lab.zones import scan

PROGRAM = '''"""From failures on dbqa-aaaa and gwas-bbbb."""
RULES = "Look at the table."  # gwas-bbbb again

def run(task, api):
    api.submit(api.generate([{"role": "user", "content": RULES + task["prompt"]}]))
'''


@pytest.mark.spec("EVID-06")
def test_case_t03_ids_in_documentation_are_a_notice_and_in_sent_text_a_leak() -> None:
    found = scan(PROGRAM, ids=["dbqa-aaaa", "gwas-bbbb", "dbqa-aaa"])
    assert [(f.text, f.zone, f.severity) for f in found] == [
        ("dbqa-aaaa", "documentation", "notice"),
        ("gwas-bbbb", "documentation", "notice"),
    ]
    assert "in documentation, not sent" in found[0].words()
    leaking = scan(PROGRAM.replace("Look at", "As in dbqa-aaaa, look at"), ids=["dbqa-aaaa"])
    assert [(f.zone, f.severity) for f in leaking] == [("code", "refused")]


@pytest.mark.spec("EVID-06")
def test_an_accepted_answer_counts_without_its_tags_and_short_ones_say_nothing() -> None:
    code = PROGRAM.replace("Look at the table.", "TP53X is the usual answer, or B.")
    found = scan(code, answers=["<answer>TP53X</answer>", "<answer>B</answer>"])
    assert [(f.kind, f.text, f.severity) for f in found] == [("answer", "TP53X", "refused")]
    assert scan(code, answers=["<answer>TP53X</answer>"], known=code) == ()


@pytest.mark.spec("EVID-06")
def test_a_held_out_string_alarms_even_in_a_comment() -> None:
    found = scan(PROGRAM, held_out=["gwas-bbbb", "Look at\n  the table."])
    assert {f.severity for f in found} == {"alarm"}
    assert len(found) == 2


@pytest.mark.spec("EVID-06")
@pytest.mark.parametrize(
    "expression",
    [
        "'dbqa' + '-' + 'aaaa'",
        "f\"{'dbqa'}-aaaa\"",
        "'-'.join(['dbqa', 'aaaa'])",
        "['dbqa-', 'aaaa']",
        "'%s-aaaa' % 'dbqa'",
        "'{}-{}'.format('dbqa', 'aaaa')",
        "'aaaa-aqbd'[::-1]",
        "'aaaa-aqbd'",
        "''.join(reversed('aaaa-aqbd'))",
        "bytes.fromhex('646271612d61616161').decode()",
        "'646271612d61616161'",
        "base64.b64decode('ZGJxYS1hYWFh')",
        "'ZGJxYS1hYWFh'",
        "'qodn-nnnn'",
        "''.join(chr(c) for c in [100, 98, 113, 97, 45, 97, 97, 97, 97])",
        "''.join(map(chr, [100, 98, 113, 97, 45, 97, 97, 97, 97]))",
        "bytes([100, 98, 113, 97, 45, 97, 97, 97, 97])",
        "'DBQA-AAAA'.lower()",
        "'dbqa\\u200b-aaaa'",
        "'ｄｂｑａ-aaaa'",
        "'db_qa-aaaa'.replace('_', '')",
        "HALF + '-aaaa'",
        "{'dbqa-aaaa': 1}",
        "' + '.join(['x']) + 'see dbqa-aaaa.'",
        "b'dbqa-aaaa'",
        " + ".join(repr(letter) for letter in "dbqa-aaaa"),
    ],
)
def test_an_id_in_pieces_or_disguise_is_found(expression: str) -> None:
    code = f"import base64\nHALF = 'dbqa'\n{PROGRAM.replace('RULES +', f'str({expression}) +')}"
    found = scan(code, ids=["dbqa-aaaa"])
    assert [(item.zone, item.severity) for item in found] == [("code", "refused")]


@pytest.mark.spec("EVID-06")
def test_a_text_that_is_built_up_over_several_lines_is_found() -> None:
    code = PROGRAM.replace("def run", "NOTE = 'dbqa'\nNOTE += '-aa'\nNOTE += 'aa'\n\ndef run")
    assert [item.severity for item in scan(code, ids=["dbqa-aaaa"])] == ["refused"]


@pytest.mark.spec("EVID-06")
def test_what_really_reached_the_model_is_scanned_and_the_dry_tasks_own_words_are_no_leak() -> None:
    sent = ["The answer is TP53X, as for dbqa-aaaa.", "What is the symbol of iron?"]
    found = scan(PROGRAM, ids=["dbqa-aaaa"], answers=["TP53X"], sent=sent)
    assert [(f.kind, f.zone, f.severity) for f in found] == [
        ("id", "sent", "refused"),
        ("answer", "sent", "refused"),
    ]
    assert "in text that reaches the model" in found[0].words()
    assert scan("x", prompts=[sent[1]], sent=sent[1:], public=sent[1]) == ()


@pytest.mark.spec("EVID-06")
def test_documentation_that_the_program_can_read_is_no_documentation() -> None:
    live = PROGRAM.replace("RULES +", "__doc__ +")
    assert {f.severity for f in scan(live, ids=["dbqa-aaaa"])} == {"refused"}


@pytest.mark.spec("EVID-06")
def test_an_answer_that_the_parent_has_in_a_comment_alone_is_a_leak_where_it_is_more() -> None:
    parent = PROGRAM.replace("gwas-bbbb again", "the answer was TP53X")
    assert [item.severity for item in scan(parent, answers=["TP53X"])] == ["notice"]
    assert scan(parent, answers=["TP53X"], known=parent) == ()
    moved = parent.replace("Look at the table.", "Say TP53X.")
    found = scan(moved, answers=["TP53X"], known=parent)
    assert [(item.zone, item.severity) for item in found] == [("code", "refused")]
    sent = scan(parent, answers=["TP53X"], known=parent, sent=["Say TP53X."])
    assert [(item.zone, item.severity) for item in sent] == [("sent", "refused")]


QUESTION = "In the passage, at how many degrees does the alloy of Zyra and Brom melt under low pressure?"
HELD = (
    "Which of the nine listed proteins binds to the long strand of Quex when zinc is absent and the buffer "
    "holds no salt?"
)


@pytest.mark.spec("EVID-06")
def test_a_quotation_of_one_train_prompt_is_refused_and_common_wording_is_not() -> None:
    quoting = PROGRAM.replace(
        "Look at the table.", "When the alloy of Zyra and Brom melt under low pressure, say 7."
    )
    found = scan(quoting, prompts=[QUESTION, "Something else."])
    assert [(f.kind, f.severity) for f in found] == [("prompt", "refused")]
    common = PROGRAM.replace("Look at the table.", "In the passage, at how many degrees does the alloy melt?")
    assert scan(common, prompts=[QUESTION, QUESTION.replace("Zyra", "Kolm")]) == ()
    assert scan(quoting, prompts=[QUESTION], known=quoting) == ()


@pytest.mark.spec("EVID-06")
def test_a_long_quotation_of_one_held_out_prompt_alarms_and_a_short_one_does_not() -> None:
    for words, alarm in ((HELD.split()[4:], True), (HELD.split()[:10], False)):
        code = PROGRAM.replace("Look at the table.", " ".join(words))
        assert {f.severity for f in scan(code, held_out=[HELD])} == ({"alarm"} if alarm else set())


@pytest.mark.spec("EVID-06")
@pytest.mark.parametrize("name", ["1024", "copper", "12", "len", "None", "text"])
def test_names_that_are_ordinary_words_or_numbers_raise_no_false_alarm(name: str) -> None:
    code = PROGRAM.replace("RULES +", "str([1024, 12, len('text copper'), None]) +")
    assert scan(code, ids=[name], held_out=[name]) == ()
    assert name not in ("len", "None") or scan(code, answers=[name]) == ()


@pytest.mark.spec("EVID-06")
def test_an_answer_counts_in_its_own_letters_only() -> None:
    code = PROGRAM.replace("Look at the table.", "Take the rest of the row, then stop.")
    assert scan(code, answers=["<answer>REST</answer>"]) == ()
    assert scan(code.replace("rest", "REST"), answers=["<answer>REST</answer>"]) != ()


@pytest.mark.spec("EVID-06")
@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(max_size=300),
        st.text(alphabet="()[]'\"+%{}\\\n #f\0\ufeff\ud800ab1", max_size=300),
        st.binary(max_size=300).map(lambda data: data.decode("utf-8", "surrogateescape")),
    ),
    st.sampled_from(["", PROGRAM, "X = '"]),
)
def test_no_text_makes_the_scan_raise(text: str, before: str) -> None:
    code = before + text
    scan(
        code,
        ids=["dbqa-aaaa", text],
        prompts=[text],
        answers=[text],
        held_out=[text],
        sent=[text],
        public=text,
    )
    assert scan(f"{code}\n'gwas-cccc' + '", held_out=["gwas-cccc"])


def test_a_megabyte_and_a_bomb_are_scanned_within_seconds() -> None:
    bombs = [
        "A = 'x' * 10**9\nB = ('y' * 60000).replace('', 'z' * 60000)\nC = '{:>999999999}'.format('x')\n"
        "D = '%999999999d' % 1\nE = bytes(10**9)\nF = 1 << 10**9\nG = 9 ** 9 ** 9\nH = G\n",
        "A = 'ab'\n" + "A += A\n" * 500,
        "S = 'x' * 60000\n" + "J = S.join(['a'] * 4000)\nK = ('é' * 30000).encode('punycode')\n" * 20,
        "A = [[" + "'a'," * 20_000 + "]]\n" + "B = A + A + A\n" * 500,
        "X = (" + "'ab' + " * 8_000 + "'')",
        "x" * (1 << 20),
        "'" + "a b " * (1 << 18) + "'",
    ]
    for bomb in bombs:
        started = time.process_time()
        scan(bomb, ids=["dbqa-aaaa"], prompts=[QUESTION], held_out=[HELD])
        assert time.process_time() - started < 10
