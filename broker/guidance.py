"""What the host tells every program about its resources: the host's words, the same for all (HOST-01).

The text goes into `task["system"]` and from there to the task model, so it is short (a small model reads
it) and part of the broker's identity: a change of it changes every measurement. Must not know any task or
release.
"""

from typing import Any

from broker.budgets import Budgets
from verifier.inventory import Inventory
from verifier.task import Task

_TABLES_NAMED = 6


def host_guidance(inventory: Inventory) -> str:
    """About sixty tokens: how code is run, where the tables are, where the answer goes."""
    names = [table.path.rpartition("/")[2] for table in inventory.tables]
    lines = ["You can run Python: <execute>code</execute>."]
    if names:
        more = "" if len(names) <= _TABLES_NAMED else f" and {len(names) - _TABLES_NAMED} more"
        lines.append(f"Tables are in /lake: {', '.join(names[:_TABLES_NAMED])}{more}.")
    lines.append("Give the final answer in <answer></answer>.")
    return "\n".join(lines)


def program_task(
    task: Task, budgets: Budgets, guidance: str, inventory: Inventory, *, user_turns: int
) -> dict[str, Any]:
    """The `task` argument of `run(task, api)`: everything public but the id (HOST-01)."""
    steps = task.surroundings.steps if task.surroundings is not None else ()
    return {
        "prompt": task.prompt,
        "family": task.family,
        "subtask": task.subtopic,
        "files": list(task.files),
        "system": guidance,
        "budgets": {**budgets.model_dump(mode="json"), "user_turns": user_turns},
        "options": list(task.options),
        "answer_format": str(task.answer_format),
        "inventory": inventory.model_dump(mode="json"),
        # Each is submitted for itself; the reply to a submission is the next one's prompt.
        **({"steps": len(steps)} if steps else {}),
    }


def public_texts(task: Task, inventory: Inventory) -> tuple[str, ...]:
    """What a program can read in `task` beside prompt and guidance, in the forms that tools repeat it.

    It is public from the start, so that a program's list of columns is no tool text when a tool prints the
    same names.
    """
    tables = [
        " ".join((table.path, table.description, *(column.name for column in table.columns)))
        for table in inventory.tables
    ]
    examples = [" ".join(column.example for column in table.columns) for table in inventory.tables]
    forms = [
        " ".join(f"{column.name} {column.type} {column.example}" for column in table.columns)
        for table in inventory.tables
    ]
    return (" ".join((*task.options, *task.files)), *tables, *examples, *forms, " ".join(inventory.libraries))
