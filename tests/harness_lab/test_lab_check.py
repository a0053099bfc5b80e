"""A program is parsed and never executed; ineffective patterns are named; a pattern alone is no reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_lab.check import MAX_BYTES, UNCHANGED, check_program
from harness_lab.improver.assemble import Trait, assemble
from harness_lab.seed import seed_harness

GOOD = """
def run(task, api):
    system = {"role": "system", "content": task["system"]}
    text = api.generate([system, {"role": "user", "content": task["prompt"]}])
    api.submit(text)
"""
SEND = 'text = api.generate([system, {"role": "user", "content": task["prompt"]}])'


def with_text(text: str) -> str:
    return GOOD.replace('task["system"]', f'task["system"] + {text!r}')


@pytest.mark.spec("PROP-02", "PROP-07")
def test_the_seed_every_assembled_program_and_any_other_shape_of_program_pass() -> None:
    assert not check_program(seed_harness().code).errors
    assert not check_program(GOOD).errors
    for trait in Trait:
        checked = check_program(assemble({Trait.EXAMPLES, Trait.LOOK_UP, trait}), seed_harness().code)
        assert checked.errors == checked.notices == (), trait
    memory = "class Memory:\n    pass\n\ndef helper(api, m):\n    return api.generate(m)\n\n"
    assert not check_program(memory + GOOD.replace("api.generate(", "helper(api, ")).errors


@pytest.mark.spec("PROP-07")
def test_a_program_is_never_executed_by_the_check(tmp_path: object) -> None:
    marker = f"{tmp_path}/ran"
    for code in (f"open({marker!r}, 'w').write('x')\n{GOOD}", f"X = [open({marker!r}, 'w')]\n{GOOD}"):
        assert not check_program(code).errors
    with pytest.raises(FileNotFoundError):
        open(marker)  # noqa: SIM115, PTH123


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def run(task, api)\n", "syntax error in line 1, column 19"),
        ("def run(task, api):\n    x = (1,\n", "line 2, column 9: '(' was never closed: x = (1,"),
        (GOOD + "return 1\n", "outside function"),
        (GOOD + "    await text\n", "outside async function"),
        ("def run(task, task):\n    pass\n", "duplicate argument"),
        ("\ufeff" + GOOD, "line 1, column 1: invalid non-printable character"),
        (f"{GOOD}# \ud800", "line 6 holds half of a surrogate pair"),
        ("x = 1\n", "exactly one top-level function run"),
        (GOOD + GOOD, "exactly one top-level function run"),
        (GOOD.replace("def run", "async def run"), "not async"),
        (GOOD.replace("def run", "@print\ndef run"), "must not be decorated"),
        (GOOD.replace("(task, api)", "(task)"), "two positional"),
        (GOOD.replace("(task, api)", "(task, api, more)"), "two positional"),
        (GOOD.replace("(task, api)", "(*args)"), "two positional"),
        (GOOD + "    yield 1\n", "generator"),
        ("#" * (MAX_BYTES + 1), f"larger than {MAX_BYTES} bytes: it has {MAX_BYTES + 1}"),
        ("\0", "null"),
        ("-" * 60_000 + "1", "nested too deeply"),
        ("(" * 5_000, "syntax error"),
        ("x = 1" + " + 1" * 15_000, "nested too deeply"),
    ],
)
def test_wrong_shapes_are_refused_in_one_line(code: str, problem: str) -> None:
    errors = check_program(code).errors
    assert problem in errors[0]
    assert "\n" not in errors[0]


def test_a_function_inside_run_may_be_a_generator() -> None:
    inside = GOOD.replace("    text =", "    def lines():\n        yield 1\n\n    list(lines())\n    text =")
    assert not check_program(inside).errors


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def run(task, api):\n    api.submit('<answer>A</answer>')\n", "never calls api.generate"),
        (GOOD.replace("api.submit(text)", "print(text)"), "never calls api.submit"),
        (GOOD.replace("api.submit(text)", "return\n    api.submit(text)"), "api.submit in line 6 can never"),
        (GOOD.replace("api.submit(text)", "if False:\n        api.submit(text)"), "can never be reached"),
        (GOOD.replace("api.submit(text)", "while True:\n        pass\n    api.submit(text)"), "can never"),
        (
            GOOD.replace("api.submit(text)", "pass") + "\ndef unused(api):\n    api.submit(1)\n",
            "can never be reached",
        ),
        (GOOD.replace(SEND, "text = api.generate([])"), "sends no message"),
        (GOOD.replace("text = api", "api").replace("submit(text)", "submit(task['prompt'])"), "thrown away"),
    ],
)
def test_a_program_whose_calls_have_no_effect_is_refused_with_the_reason(code: str, problem: str) -> None:
    assert any(problem in error for error in check_program(code).errors)


@pytest.mark.parametrize(
    "code",
    [
        GOOD.replace("api.submit(text)", "if text:\n        return\n    api.submit(text)"),
        GOOD.replace("api.submit(text)", "while True:\n        break\n    api.submit(text)"),
        GOOD.replace("api.submit(text)", "while 1:\n        api.submit(text)"),
        GOOD.replace("api.submit(text)", "finish(api, text)") + "\ndef finish(a, b):\n    a.submit(b)\n",
        GOOD.replace("api.submit(text)", "Finish().end(api)")
        + "\nclass Finish:\n    def end(self, api):\n        api.submit('x' + str(self))\n",
        GOOD.replace("api.submit(text)", "globals()['finish'](api, text)")
        + "\ndef finish(a, b):\n    a.submit(b)\n",
        GOOD.replace("api.submit(text)", "[s for s in (api.submit,)][0](text)"),
        GOOD.replace("text = api.generate(", "ask = api.generate\n    text = ask("),
        GOOD.replace("api.submit(text)", "match text:\n        case _:\n            api.submit(text)"),
        GOOD.replace("api.submit(text)", "try:\n        raise KeyError\n    except KeyError:\n"
                     "        api.submit(text)"),
    ],
)  # fmt: skip
def test_calls_that_may_be_reached_are_never_called_unreachable(code: str) -> None:
    assert not check_program(code).errors


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    "answer",
    [
        "'<answer>A</answer>'",
        "X",
        "f'<answer>{X}</answer>'",
        "'<answer>%s</answer>' % X",
        "'<answer>{}</answer>'.format('B')",
        "random.choice(['A', 'B'])",
        "f\"<answer>{task['options'][0]}</answer>\"",
    ],
)
def test_constant_and_random_answers_are_refused(answer: str) -> None:
    code = "import random\nX = '<answer>B</answer>'\n" + GOOD.replace("submit(text)", f"submit({answer})")
    assert any("constant or drawn at random" in error for error in check_program(code).errors)


@pytest.mark.parametrize(
    "answer",
    [
        "text",
        "f'<answer>{text}</answer>'",
        "task['options'][len(text) % 2]",
        "best(text)",
        "X if text else Y",
    ],
)
def test_an_answer_that_depends_on_the_model_is_no_constant(answer: str) -> None:
    code = "X = 'a'\nY = 'b'\nbest = str\n" + GOOD.replace("submit(text)", f"submit({answer})")
    assert not check_program(code).errors


@pytest.mark.spec("PROP-07")
def test_comments_docstrings_and_annotations_alone_change_nothing() -> None:
    documented = GOOD.replace("api):\n", 'api):\n    """From failures on t1."""\n') + "# a comment\n"
    assert UNCHANGED in check_program(documented, GOOD).errors[0]
    annotated = GOOD.replace("(task, api)", "(task: dict[str, object], api: object) -> None")
    assert UNCHANGED in check_program(annotated.replace("text =", "text: str ="), GOOD).errors[0]
    assert UNCHANGED in check_program(GOOD.replace("    ", "  ").replace('"', "'"), GOOD).errors[0]
    assert not check_program(documented.replace('"user"', '"tool"'), GOOD).errors
    live = documented.replace('task["system"]', "run.__doc__")
    assert not check_program(live.replace("t1", "t2"), live).errors


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    "use",
    [
        'task.get("system", RULES)',
        '(task["system"] or RULES)',
        '(task.get("system") or RULES)',
        'task.setdefault("system", RULES)',
        '(task["system"] if "system" in task else RULES)',
        '(task["system"] if task.get("system") else RULES)',
        'task.get("prompt", RULES)',
    ],
)
def test_case_t01_a_dead_default_is_a_notice_and_no_reason(use: str) -> None:
    code = f'RULES = "be brief"\n{GOOD.replace("task[" + chr(34) + "system" + chr(34) + "]", use)}'
    found = check_program(code, GOOD)
    assert not found.errors
    assert any("dead" in notice for notice in found.notices)


@pytest.mark.parametrize(
    "use",
    ['task.get("system")', 'task["options"] or [RULES]', 'cache.get("system", RULES)', 'task["system"]'],
)
def test_a_default_that_may_be_used_is_not_called_dead(use: str) -> None:
    code = f'RULES = "be brief"\ncache = {{}}\n{GOOD}    print({use}, RULES)\n'
    assert check_program(code).notices == ()


@pytest.mark.spec("PROP-07")
def test_case_t02_a_text_constant_that_nothing_reads_is_a_notice_and_one_that_is_sent_is_not() -> None:
    unread = check_program('RULES: str = "be brief"\n' + GOOD)
    assert "RULES is never read" in unread.notices[0]
    sent = GOOD.replace('task["system"]', 'task["system"] + RULES')
    assert check_program('RULES: str = "be brief"\n' + sent, GOOD) == check_program(
        sent.replace("RULES", "'x'")
    )


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    ("code", "notice"),
    [
        ("A = 'x'\nB = A + 'y'\n" + GOOD, "line 1: the text constant A is never read"),
        ("A = ['Be brief.', 'y']\n" + GOOD, "A is never read"),
        ("A = 'x'\ndef unused():\n    return A\n" + GOOD, "A is never read"),
        (GOOD + "    note = 'Think.'\n", "note is never read"),
        (GOOD + "    text.replace('a', 'b')\n", "line 6: the result is thrown away"),
        (GOOD + "    [system] + [{'role': 'user', 'content': 'Think.'}]\n", "the result is thrown away"),
        (GOOD + "    task['budgets']['model_calls'] = 50\n", "budgets are the host's"),
        ("import numpy\n" + GOOD, "line 1: import of numpy: programs have the standard library only"),
        ("from urllib import request\n" + GOOD, "import of urllib: there is no network"),
        ("import subprocess\n" + GOOD, "no other program to start"),
        ("from verifier.references import load_references\n" + GOOD, "the host's own packages"),
        ("x = __import__('torch.nn')\n" + GOOD, "import of torch: programs have the standard library"),
    ],
)
def test_a_part_without_effect_is_a_notice_with_its_line_and_no_reason(code: str, notice: str) -> None:
    found = check_program(code)
    assert not found.errors
    assert any(notice in item for item in found.notices), found.notices


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        ("api.generate([system], temperature=0)", "line 4: api.generate takes messages and nothing else"),
        ("api.generate(system, [system])", "api.generate takes one argument, messages, and is given 2"),
        ("api.search('x')", "line 4: api has no search"),
    ],
)
def test_a_call_that_would_raise_is_named_beforehand_unless_the_program_guards_it(
    use: str, problem: str
) -> None:
    code = GOOD.replace(SEND, f"text = {use} or api.generate([system])")
    assert any(problem in error for error in check_program(code).errors)
    guarded = f"def safe():\n    try:\n        pass\n    except TypeError:\n        pass\n{code}"
    assert not check_program(guarded).errors


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    ("text", "alarm"),
    [
        ("Always print a short summary of each table.", False),
        ("Use A for the first option, and so on.", False),
        ("Say which gene it is.", False),
        ("Answer A, B, C or D.", False),
        ("Choose A or B.", False),
        ("Reply with A/B/C/D.", False),
        ("Give the answer as a letter, e.g. the letter of the right option.", False),
        ("Use a table. Pick a row.", False),
        ("If unsure, run one more query.", False),
        ("If unsure, look at gene A in the table.", False),
        ("Select the first row.", False),
        ("Print A.shape and choose columns.", False),
        ("If unsure, answer C.", True),
        ("When in doubt choose B", True),
        ("When in doubt, choose option (B).", True),
        ("Default to C when the table is empty.", True),
        ("If you are not sure: <answer>D</answer>.", True),
        ("Go with the letter A if nothing is found", True),
        ("If unsure, pick the longest option.", True),
        ("Prefer the first choice.", True),
    ],
)
def test_case_t04_preferences_alarm_and_ordinary_words_do_not(text: str, alarm: bool) -> None:
    assert bool(check_program(with_text(text)).errors) is alarm
    halves = with_text(text).replace(repr(text), f"({text[:9]!r} + {text[9:]!r})")
    assert bool(check_program(halves).errors) is alarm
    documented = f'"""{text} """\n{GOOD}# {text}\n'
    assert not check_program(documented).errors


TEXT = st.one_of(
    st.text(max_size=400),
    st.text(alphabet="()[]{}:=+-*\"'\\\n\t #f\0\ufeff\ud800éabc1_.,", max_size=400),
    st.binary(max_size=300).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.binary(max_size=300).map(lambda data: data.decode("utf-16-le", "replace")),
    st.builds(
        lambda unit, times: unit * times,
        st.sampled_from(["(", "not ", "-", "[x for ", "a.", "if 1:\n ", "\0"]),
        st.integers(0, 9_000),
    ),
)


@pytest.mark.spec("PROP-07")
@settings(max_examples=300, deadline=None)
@given(TEXT, st.sampled_from(["", GOOD, "def run(task, api):\n    x = '"]))
def test_no_text_makes_the_check_raise(text: str, before: str) -> None:
    for parent in (None, GOOD, text):
        found = check_program(before + text, parent)
        assert all("\n" not in line for line in (*found.errors, *found.notices))


def test_a_megabyte_is_refused_quickly_and_deep_nesting_is_no_crash() -> None:
    for code in ("x" * (1 << 20), "é" * (1 << 20), GOOD + "#" * (1 << 20)):
        assert "larger than" in check_program(code).errors[0]
    chain = "if task:\n        pass\n" + "    elif task:\n        pass\n" * 2_000
    assert check_program(GOOD + "    " + chain).errors in (
        (),
        ("syntax error: nested too deeply to be parsed",),
        ("the program is nested too deeply to be checked",),
    )
