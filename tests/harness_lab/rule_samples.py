"""Evidence and parents for the tests of the rule improver."""

from typing import Any

from lab_samples import interaction, tool_call

from broker.budgets import Budgets
from broker.harness import Harness
from harness_lab.evidence import Interaction, bundle
from harness_lab.improver.assemble import Trait, assemble
from harness_lab.improver.base import Proposal, ProposalContext, propose_all
from harness_lab.improver.rules import RuleImprover
from harness_lab.replies import ReplyCase
from tests.fixtures.episodes import release

FIRST_STEP = [interaction(f"t{n}", ReplyCase.INVALID_FORMAT) for n in range(4)]
ROWS = (tool_call(stdout="name: copper, melting: 1085"),)
DOUBTED = [interaction(f"t{n}", ReplyCase.RECONSIDER, tools=ROWS) for n in range(3)]
ONE_STEP_ON = assemble({Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP})
FOCUSED = {Trait.DIRECT, Trait.EXAMPLES, Trait.LOOK_UP, Trait.FOCUS}


def context(*interactions: Interaction, **changes: Any) -> ProposalContext:
    inventory = release().inventory().model_dump(mode="json")
    return ProposalContext(
        evidence=bundle([], interactions), inventory=inventory, budgets=Budgets(), **changes
    )


async def proposals(parent: str, given: ProposalContext, count: int = 3) -> list[Proposal]:
    found = await propose_all(RuleImprover(), Harness(code=parent), given, count)
    return [item for item in found if isinstance(item, Proposal)]
