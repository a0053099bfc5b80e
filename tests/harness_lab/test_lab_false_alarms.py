"""On the bundled release, programs that mean no harm raise no alarm: the seeds and what rules assemble."""

from typing import Any

import pytest

from broker.budgets import Budgets
from broker.guidance import host_guidance, program_task
from broker.harness import Harness
from harness_lab.check import check_program
from harness_lab.dry_scripts import MORE_SCRIPTS, SCRIPTS
from harness_lab.dryrun import dry_run
from harness_lab.improver.assemble import Trait, assemble
from harness_lab.preferences import letter_preference
from harness_lab.seed import seed_harness
from harness_lab.zones import scan
from tests.fixtures.fake_sandbox import FakeFactory
from tests.fixtures.references import load_references
from verifier.release import Release, find
from verifier.task import Task

DIRECT = {Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP, Trait.FOCUS, Trait.MORE_EXAMPLES, Trait.REPAIR}
PROGRAMS = [
    seed_harness().code,
    seed_harness("skills").code,
    *(assemble({trait}) for trait in Trait),
    assemble(DIRECT | {Trait.LAST_PAIR, Trait.WIDE}),
    assemble(set(Trait) - {Trait.DIRECT}),
]


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts(item)]
    return [str(value)]


@pytest.mark.spec("EVID-06", "PROP-07")
def test_no_seed_and_no_assembled_program_is_a_leak_or_a_notice() -> None:
    release = find("open-genomics")
    train, held_out = release.split("train"), (*release.split("val"), *release.split("test"))
    references = load_references(release)
    for code in PROGRAMS:
        found = scan(
            code,
            ids=[task.id for task in train],
            prompts=[task.prompt for task in train],
            answers=[f"<answer>{references[task.id].answer}</answer>" for task in train],
            held_out=[text for task in held_out for text in (task.id, task.prompt)],
        )
        assert found == ()
        checked = check_program(code)
        assert checked.errors == checked.notices == ()


def of_each_form(release: Release) -> list[Task]:
    return list({task.answer_format: task for task in release.split("train")}.values())


@pytest.mark.spec("EVID-06", "PROP-07")
async def test_nothing_that_such_programs_send_is_a_leak_or_prefers_an_option() -> None:
    release = find("open-genomics")
    inventory = release.inventory()
    chosen = of_each_form(release)
    given = [
        program_task(task, Budgets(), host_guidance(inventory), inventory, user_turns=1) for task in chosen
    ]
    train, held_out = release.split("train"), (*release.split("val"), *release.split("test"))
    scripts = (*SCRIPTS, *MORE_SCRIPTS)
    public = "\n".join(texts([given, [script.model_dump() for script in scripts]]))
    for code in (*PROGRAMS[:2], *PROGRAMS[-2:]):
        sent = (await dry_run(FakeFactory(), Harness(code=code), given, scripts)).sent_text
        assert sent
        found = scan(
            code,
            ids=[task.id for task in train],
            prompts=[task.prompt for task in train],
            held_out=[text for task in held_out for text in (task.id, task.prompt)],
            sent=sent,
            public=public,
        )
        assert found == ()
        for text in sent:
            for task in chosen:
                text = text.replace(task.prompt, "\n")
            assert letter_preference(text) is None, text


@pytest.mark.parametrize("task", of_each_form(find("open-genomics")), ids=lambda task: task.answer_format)
def test_the_releases_own_prompts_prefer_no_option(task: Task) -> None:
    assert letter_preference(task.prompt) is None
