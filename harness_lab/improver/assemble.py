"""From a set of traits to a program, deterministically, and back from a program's header to its traits.

The pieces are the functions in `blocks`; a program holds only those that its traits need. Must not know
evidence or a release.
"""

import ast
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final

from harness_lab.improver.blocks.find import show
from harness_lab.improver.examples import EXAMPLES, Example


class Trait(StrEnum):
    """One thing a program does that H0 does not. The order here is the order in a program's header."""

    DIRECT = "direct"
    """One short answer-only turn instead of a loop with tool calls of the model's own."""
    EXAMPLES = "examples"
    """Worked examples of the asked form as chat turns."""
    LOOK_UP = "look_up"
    """The program looks the question's names up in all tables first."""
    FOCUS = "focus"
    """Of the rows found, only those about the name, only the asked columns, in the asked order."""
    MORE_EXAMPLES = "more_examples"
    REPAIR = "repair"
    """A reply without the asked form is asked for once more before it is submitted."""
    INSPECT = "inspect"
    """After a failed tool call the model is shown the tables' columns and may try again."""


SYSTEM: Final = "Reply with <answer>VALUE</answer> only."
_FEW, _MORE = 2, 3


def traits_of(code: str) -> frozenset[Trait] | None:
    """The traits in a program's header; None for a program that was not assembled here."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "TRAITS"
        ):
            try:
                return frozenset(Trait(name) for name in ast.literal_eval(node.value))
            except (ValueError, TypeError):
                return None
    return None


def assemble(traits: Iterable[Trait]) -> str:
    """The program with exactly these traits."""
    chosen = [trait for trait in Trait if trait in set(traits)]
    parts = [_head(chosen), *(_function(_blocks("program"), name) for name in _needed(chosen)), _run(chosen)]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


@cache
def _blocks(name: str) -> str:
    return files("harness_lab.improver").joinpath(f"blocks/{name}.py").read_text(encoding="utf-8")


def _function(source: str, name: str) -> str:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_source_segment(source, node) or ""
    raise ValueError(f"no block {name}")


def _needed(traits: Sequence[Trait]) -> list[str]:
    names = ["say"]
    if Trait.EXAMPLES in traits or Trait.REPAIR in traits:
        names.append("form_line")
    if Trait.EXAMPLES in traits:
        names.append("worked_examples")
    if Trait.LOOK_UP in traits:
        names += ["names_in", "look_up"]
    if Trait.REPAIR in traits:
        names.append("has_form")
    if Trait.INSPECT in traits:
        names.append("tables_text")
    return names


def _head(traits: Sequence[Trait]) -> str:
    lines = ['"""A program assembled by rules; TRAITS names what it does."""', ""]
    lines += ["import json"] if Trait.LOOK_UP in traits else []
    lines += ["import re"] if Trait.LOOK_UP in traits or Trait.DIRECT not in traits else []
    lines += ["from typing import Any", "", f"TRAITS = {tuple(trait.value for trait in traits)!r}"]
    if Trait.DIRECT in traits:
        lines.append(f"SYSTEM = {SYSTEM!r}")
    else:
        lines.append('BLOCK = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)')
    if Trait.EXAMPLES in traits:
        lines.append(_examples(traits))
    if Trait.LOOK_UP in traits:
        lines.append(f"FIND = r'''\n{_find_code(traits)}'''")
    return "\n".join(lines)


def _find_code(traits: Sequence[Trait]) -> str:
    """The tool code; ASKED stands for what is looked for."""
    imports = ["import csv", "from pathlib import Path", "from typing import Any"]
    code = [_body(_blocks("find"))]
    last = 'print(show([item["row"] for item in find_rows(asked["tables"], asked["names"])]))'
    if Trait.FOCUS in traits:
        imports.insert(1, "import re")
        code.append(_body(_blocks("focus")))
        last = (
            'found = find_rows(asked["tables"], asked["names"])\n'
            'print(show(focus(found, asked["question"], asked["options"])))'
        )
    return "\n".join([*imports, *code, "asked = ASKED", last, ""])


def _body(source: str) -> str:
    """A block without its docstring and imports."""
    kept = [
        node
        for node in ast.parse(source).body
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
    ]
    return "\n\n".join(ast.get_source_segment(source, node) or "" for node in kept)


def _examples(traits: Sequence[Trait]) -> str:
    count = _MORE if Trait.MORE_EXAMPLES in traits else _FEW
    lines = ["EXAMPLES: dict[str, list[tuple[str, str, str]]] = {"]
    for form, examples in EXAMPLES.items():
        lines.append(f"    {form!r}: [")
        for example in examples[:count]:
            item = (example.question, _rows(example, traits), example.answer)
            lines.append(f"        {item!r},")
        lines.append("    ],")
    return "\n".join([*lines, "}"])


def _rows(example: Example, traits: Sequence[Trait]) -> str:
    """The example's rows as this program's look-up would print them."""
    rows = [
        {name: cell for name, cell in row.items() if Trait.FOCUS not in traits or name in example.asked}
        for row in example.rows
    ]
    return show(rows)


def _run(traits: Sequence[Trait]) -> str:
    system = "SYSTEM" if Trait.DIRECT in traits else 'task["system"]'
    lines = [
        "def run(task: dict[str, Any], api: Any) -> None:",
        f'    messages = [say("system", {system}, "harness")]',
    ]
    rows = '""'
    if Trait.LOOK_UP in traits:
        lines.append('    rows = look_up(task, api)["stdout"].strip()')
        rows = "rows"
    if Trait.EXAMPLES in traits:
        lines.append(f"    messages += worked_examples(task, {rows})")
    if Trait.LOOK_UP in traits:
        lines += [
            "    if rows:",
            '        messages.append(say("user", f"{task[\'prompt\']}\\n\\n{rows}", "harness"))',
            "    else:",
            '        messages.append(say("user", task["prompt"], "task"))',
        ]
    else:
        lines.append('    messages.append(say("user", task["prompt"], "task"))')
    lines += _direct(traits) if Trait.DIRECT in traits else _loop(traits)
    return "\n".join(lines)


def _direct(traits: Sequence[Trait]) -> list[str]:
    return [
        "    while True:",
        "        text = api.generate(messages)",
        *_repair(traits),
        '        messages.append(say("assistant", text, "model"))',
        '        messages.append(say("user", api.submit(text)["reply"], "feedback"))',
    ]


def _repair(traits: Sequence[Trait]) -> list[str]:
    if Trait.REPAIR not in traits:
        return []
    return [
        "        if not has_form(text):",
        '            messages.append(say("assistant", text, "model"))',
        '            messages.append(say("user", form_line(task), "harness"))',
        "            text = api.generate(messages)",
    ]


def _loop(traits: Sequence[Trait]) -> list[str]:
    left = 'task["budgets"]["tool_calls"]' + (" - 1" if Trait.LOOK_UP in traits else "")
    inspect = [
        '            if seen["error"]:',
        '                hint = f"That failed. The tables are:\\n{tables_text(task)}\\nTry again."',
        '                messages.append(say("user", hint, "harness"))',
    ]
    return [
        f"    tools = {left}",
        "    while True:",
        "        text = api.generate(messages)",
        *_repair(traits),
        '        messages.append(say("assistant", text, "model"))',
        "        blocks = BLOCK.findall(text)",
        "        if blocks and tools > 0:",
        "            seen = api.execute(blocks[0])",
        "            tools -= 1",
        '            messages.append(say("user", f"Observation: {seen}", "tool"))',
        *(inspect if Trait.INSPECT in traits else []),
        "        else:",
        '            messages.append(say("user", api.submit(text)["reply"], "feedback"))',
    ]
