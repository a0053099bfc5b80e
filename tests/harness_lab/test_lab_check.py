"""A program is parsed and never executed; ineffective patterns are named; a pattern alone is no reason."""

import pytest

from harness_lab.check import MAX_BYTES, UNCHANGED, check_program
from harness_lab.improver.assemble import Trait, assemble
from harness_lab.seed import seed_harness

GOOD = """
def run(task, api):
    system = {"role": "system", "content": task["system"]}
    text = api.generate([system, {"role": "user", "content": task["prompt"]}])
    api.submit(text)
"""


@pytest.mark.spec("PROP-02", "PROP-07")
def test_the_seed_every_assembled_program_and_any_other_shape_of_program_pass() -> None:
    assert not check_program(seed_harness().code).errors
    assert not check_program(GOOD).errors
    for trait in Trait:
        assert not check_program(assemble({Trait.EXAMPLES, Trait.LOOK_UP, trait}), seed_harness().code).errors
    memory = "class Memory:\n    pass\n\ndef helper(api, m):\n    return api.generate(m)\n\n"
    assert not check_program(memory + GOOD.replace("api.generate(", "helper(api, ")).errors


@pytest.mark.spec("PROP-07")
def test_a_program_is_never_executed_by_the_check(tmp_path: object) -> None:
    marker = f"{tmp_path}/ran"
    assert not check_program(f"open({marker!r}, 'w').write('x')\n{GOOD}").errors
    with pytest.raises(FileNotFoundError):
        open(marker)  # noqa: SIM115, PTH123


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def run(task, api)\n", "syntax error in line 1"),
        ("x = 1\n", "exactly one top-level function run"),
        (GOOD + GOOD, "exactly one top-level function run"),
        (GOOD.replace("def run", "async def run"), "not async"),
        (GOOD.replace("(task, api)", "(task)"), "two positional"),
        (GOOD.replace("(task, api)", "(task, api, more)"), "two positional"),
        (GOOD.replace("(task, api)", "(*args)"), "two positional"),
        (GOOD + "    yield 1\n", "generator"),
        ("#" * (MAX_BYTES + 1), "larger than"),
        ("\0", "syntax error"),
    ],
)
def test_wrong_shapes_are_refused_in_one_line(code: str, problem: str) -> None:
    errors = check_program(code).errors
    assert problem in errors[0]
    assert "\n" not in errors[0]


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def run(task, api):\n    api.submit('<answer>A</answer>')\n", "never calls api.generate"),
        (GOOD.replace("api.submit(text)", "print(text)"), "never calls api.submit"),
        (GOOD.replace("api.submit(text)", "api.submit('<answer>A</answer>')"), "is a constant"),
        ("X = '<answer>B</answer>'\n" + GOOD.replace("api.submit(text)", "api.submit(X)"), "is a constant"),
    ],
)
def test_programs_without_effect_are_refused(code: str, problem: str) -> None:
    assert any(problem in error for error in check_program(code).errors)


@pytest.mark.spec("PROP-07")
def test_comments_and_docstrings_alone_change_nothing() -> None:
    documented = GOOD.replace("api):\n", 'api):\n    """From failures on t1."""\n') + "# a comment\n"
    assert UNCHANGED in check_program(documented, GOOD).errors[0]
    assert not check_program(documented.replace('"user"', '"tool"'), GOOD).errors


@pytest.mark.spec("PROP-07")
@pytest.mark.parametrize(
    "use", ['task.get("system", RULES)', '(task["system"] or RULES)', 'task.get("system") or RULES']
)
def test_a_dead_default_is_a_notice_and_no_reason(use: str) -> None:
    found = check_program(
        f'RULES = "be brief"\n{GOOD.replace("task[" + chr(34) + "system" + chr(34) + "]", use)}'
    )
    assert not found.errors
    assert any("dead" in notice for notice in found.notices)


@pytest.mark.spec("PROP-07")
def test_a_text_constant_that_nothing_reads_is_a_notice_and_one_that_is_sent_is_not() -> None:
    unread = check_program('RULES: str = "be brief"\n' + GOOD)
    assert "RULES is never read" in unread.notices[0]
    sent = GOOD.replace('task["system"]', 'task["system"] + RULES')
    assert check_program('RULES: str = "be brief"\n' + sent, GOOD) == check_program(
        sent.replace("RULES", "'x'")
    )


@pytest.mark.parametrize(
    ("text", "alarm"),
    [
        ("Always print a short summary of each table.", False),
        ("If unsure, answer C.", True),
        ("When in doubt choose B", True),
        ("Use A for the first option, and so on.", False),
        ("Say which gene it is.", False),
    ],
)
def test_case_t04_letter_preferences_alarm_and_ordinary_words_do_not(text: str, alarm: bool) -> None:
    code = GOOD.replace('task["system"]', f'task["system"] + {text!r}')
    assert bool(check_program(code).errors) is alarm
