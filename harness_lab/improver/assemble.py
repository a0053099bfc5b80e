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
    NOTICE = "notice"
    """The host's budget notice is passed on, and the last model call is an answer."""
    TABLES = "tables"
    """Tables and their columns stand in the first message."""
    PRINT = "print"
    """After a call that printed nothing the model is told so."""
    RECENT = "recent"
    """Older turns are left out when the context runs short."""
    QUICK = "quick"
    """The model is told how long its code may run."""
    LAST_PAIR = "last_pair"
    """Of several answers in one text the last is submitted."""
    WIDE = "wide"
    """A look-up that finds no equal cell takes cells that contain the name."""
    PAGES = "pages"
    """After cut output the model is told to print less."""


LOOP_ONLY: Final = frozenset(
    {Trait.INSPECT, Trait.NOTICE, Trait.TABLES, Trait.PRINT, Trait.RECENT, Trait.QUICK, Trait.PAGES}
)
"""Traits of the loop with tool calls of the model's own; beside DIRECT they have no effect."""


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
    if Trait.INSPECT in traits or Trait.TABLES in traits:
        names.append("tables_text")
    names += [block for trait, block in _OWN_BLOCK.items() if trait in traits]
    return names


_OWN_BLOCK: Final = {Trait.RECENT: "recent", Trait.LAST_PAIR: "last_pair"}


def _head(traits: Sequence[Trait]) -> str:
    lines = ['"""A program assembled by rules; TRAITS names what it does."""', ""]
    lines += ["import json"] if Trait.LOOK_UP in traits else []
    patterns = {Trait.LOOK_UP, Trait.LAST_PAIR} & set(traits) or Trait.DIRECT not in traits
    lines += ["import re"] if patterns else []
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
    rows = 'find_rows(asked["tables"], asked["names"])'
    if Trait.FOCUS in traits or Trait.WIDE in traits:
        imports.insert(1, "import re")
    if Trait.WIDE in traits:
        code.append(_body(_blocks("near")))
        rows += ' or find_near(asked["tables"], asked["names"])'
    last = f'print(show([item["row"] for item in {rows}]))'
    if Trait.FOCUS in traits:
        code.append(_body(_blocks("focus")))
        last = f'found = {rows}\nprint(show(focus(found, asked["question"], asked["options"])))'
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
    lines = [
        "def run(task: dict[str, Any], api: Any) -> None:",
        *_first_message(traits),
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


def _first_message(traits: Sequence[Trait]) -> list[str]:
    system = "SYSTEM" if Trait.DIRECT in traits else 'task["system"]'
    if Trait.DIRECT in traits or not {Trait.TABLES, Trait.QUICK} & set(traits):
        return [f'    messages = [say("system", {system}, "harness")]']
    lines = [f"    system = {system}"]
    if Trait.TABLES in traits:
        lines.append('    system += f"\\nColumns of the tables:\\n{tables_text(task)}"')
    if Trait.QUICK in traits:
        lines.append(
            "    system += f\"\\nCode is stopped after {task['budgets']['tool_seconds']:g} seconds: \"\n"
            '    system += "read only the rows and columns that you need."'
        )
    return [*lines, '    messages = [say("system", system, "harness")]']


def _direct(traits: Sequence[Trait]) -> list[str]:
    return [
        "    while True:",
        "        text = api.generate(messages)",
        *_repair(traits),
        '        messages.append(say("assistant", text, "model"))',
        f'        messages.append(say("user", api.submit({_answer(traits)})["reply"], "feedback"))',
    ]


def _answer(traits: Sequence[Trait]) -> str:
    return "last_pair(text)" if Trait.LAST_PAIR in traits else "text"


def _repair(traits: Sequence[Trait]) -> list[str]:
    if Trait.REPAIR not in traits:
        return []
    return [
        f"        if not has_form({_answer(traits)}):",
        '            messages.append(say("assistant", text, "model"))',
        '            messages.append(say("user", form_line(task), "harness"))',
        "            text = api.generate(messages)",
    ]


def _loop(traits: Sequence[Trait]) -> list[str]:
    left = 'task["budgets"]["tool_calls"]' + (" - 1" if Trait.LOOK_UP in traits else "")
    before = ["    head = len(messages)"] if Trait.RECENT in traits else []
    each = ["        messages = recent(messages, head, task, api)"] if Trait.RECENT in traits else []
    may_run = "blocks and tools > 0"
    if Trait.NOTICE in traits:
        each += ["        if api.notice:", "            messages.append(api.notice)"]
        may_run += ' and api.left["model_calls"] > 0'
    return [
        f"    tools = {left}",
        *before,
        "    while True:",
        *each,
        "        text = api.generate(messages)",
        *_repair(traits),
        '        messages.append(say("assistant", text, "model"))',
        "        blocks = BLOCK.findall(text)",
        f"        if {may_run}:",
        "            seen = api.execute(blocks[0])",
        "            tools -= 1",
        '            messages.append(say("user", f"Observation: {seen}", "tool"))',
        *_after_a_call(traits),
        "        else:",
        f'            messages.append(say("user", api.submit({_answer(traits)})["reply"], "feedback"))',
    ]


def _after_a_call(traits: Sequence[Trait]) -> list[str]:
    """What the model is told after a call, each for its own kind of outcome."""
    lines: list[str] = []
    if Trait.INSPECT in traits:
        lines += [
            '            if seen["error"]:',
            '                hint = f"That failed. The tables are:\\n{tables_text(task)}\\nTry again."',
            '                messages.append(say("user", hint, "harness"))',
        ]
    if Trait.PRINT in traits:
        lines += [
            '            if not seen["stdout"].strip() and not seen["error"]:',
            '                hint = "Nothing was printed: only what print() writes can be seen."',
            '                messages.append(say("user", hint, "harness"))',
        ]
    if Trait.PAGES in traits:
        lines += [
            '            if seen.get("output_truncated"):',
            '                hint = "The output was cut: print fewer rows and only what matters."',
            '                messages.append(say("user", hint, "harness"))',
        ]
    return lines
