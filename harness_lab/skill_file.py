"""A single-file harness with entries: instructions and scoped skills as literals, all else frozen (PROP-09).

The file holds `INSTRUCTIONS = [{"name", "text"}, ...]` and `SKILLS = [{"name", "scope", "text"}, ...]` at top
level. An edit changes one entry; every byte outside the two lists stays. Which entries a prompt gets is the
program's business (`programs/skills.py`): instructions always, then skills whose scope is `all`,
`family:<family>` or `subtopic:<subtopic>` of the task, in the order of the file. Must not know evidence.
"""

import ast
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from harness_lab.syntax import ProgramSyntaxError, parse

LONGEST_TEXT: Final = 1200
LONGEST_NAME: Final = 40
MOST_SKILLS: Final = 24
MOST_INSTRUCTIONS: Final = 12
ALL: Final = "all"
_LINES: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""As Python counts them, which is not as `splitlines` does."""
_LISTS: Final = ("INSTRUCTIONS", "SKILLS")

Name = Annotated[str, StringConstraints(pattern=rf"^[a-z][a-z0-9 -]{{0,{LONGEST_NAME - 1}}}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_TEXT)]
Scope = Annotated[str, StringConstraints(pattern=r"^(?:all|family:.{1,80}|subtopic:.{1,80})$")]


class SkillFileError(Exception):
    """The file or the edit does not keep to the format; one line that says where and what to change."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Instruction(_Frozen):
    """In every prompt."""

    name: Name
    text: Text


class Skill(_Frozen):
    """In the prompts of the tasks in its scope."""

    name: Name
    scope: Scope
    text: Text


class Edit(_Frozen):
    """One change of one entry. What an action does not need is left out."""

    action: Literal["add", "remove", "revise"]
    kind: Literal["skill", "instruction"]
    name: Name
    scope: Scope | None = None
    """Of a skill that is added; of one that is revised, a new scope."""
    text: Text | None = None


@dataclass(frozen=True)
class SkillFile:
    """A parsed file: the two lists, and the frozen lines around them."""

    instructions: tuple[Instruction, ...]
    skills: tuple[Skill, ...]
    frozen: tuple[str, ...]
    """Before the first list, between the two, after the second."""
    order: tuple[str, ...]
    """Which list stands first."""

    def code(self) -> str:
        """The file's text, lists in their one canonical form."""
        lists: dict[str, Sequence[Instruction | Skill]] = {
            "INSTRUCTIONS": self.instructions,
            "SKILLS": self.skills,
        }
        first, second = (_literal(name, lists[name]) for name in self.order)
        return self.frozen[0] + first + self.frozen[1] + second + self.frozen[2]


def read_skill_file(code: str) -> SkillFile:
    """Raises SkillFileError."""
    try:
        tree = parse(code)
    except ProgramSyntaxError as error:
        raise SkillFileError(str(error)) from None
    found = [(name, node) for node in tree.body if (name := _assigned(node)) is not None]
    if sorted(name for name, _ in found) != sorted(_LISTS):
        raise SkillFileError(
            f"a skill file assigns INSTRUCTIONS and SKILLS once each at top level, this one "
            f"{', '.join(name for name, _ in found) or 'neither'}"
        )
    lines = _LINES.findall(code)
    (first, one), (second, other) = found
    frozen = (
        "".join(lines[: one.lineno - 1]),
        "".join(lines[one.end_lineno : other.lineno - 1]),
        "".join(lines[other.end_lineno :]),
    )
    values = {name: _entries(name, node) for name, node in found}
    return SkillFile(
        instructions=_checked("instruction", values["INSTRUCTIONS"], Instruction, MOST_INSTRUCTIONS),
        skills=_checked("skill", values["SKILLS"], Skill, MOST_SKILLS),
        frozen=frozen,
        order=(first, second),
    )


def apply_edit(code: str, edit: Edit, scopes: Collection[str]) -> str:
    """The file with one entry added, removed or revised; every other byte of it stays. Raises SkillFileError.

    `scopes` are those that a skill may get, beside `all`.
    """
    file = read_skill_file(code)
    if file.code() != code:
        raise SkillFileError(
            "the parent's lists are not in their canonical form, so an edit would touch more"
        )
    if edit.scope is not None and edit.kind == "instruction":
        raise SkillFileError("an instruction has no scope: it stands in every prompt")
    allowed = (ALL, *sorted({*scopes} - {ALL}))
    if edit.scope is not None and edit.scope not in allowed:
        raise SkillFileError(f"scope {edit.scope!r} is none of: {', '.join(allowed)}")
    entries: list[Any] = list(file.skills if edit.kind == "skill" else file.instructions)
    place = next((at for at, entry in enumerate(entries) if entry.name == edit.name), None)
    if edit.action == "add":
        _add(entries, edit, place)
    elif place is None:
        names = ", ".join(repr(entry.name) for entry in entries) or "none"
        raise SkillFileError(f"there is no {edit.kind} {edit.name!r} to {edit.action}: there are {names}")
    elif edit.action == "remove":
        _refuse_fields(edit)
        del entries[place]
    else:
        _revise(entries, edit, place)
    changed = (
        SkillFile(file.instructions, tuple(entries), file.frozen, file.order)
        if edit.kind == "skill"
        else SkillFile(tuple(entries), file.skills, file.frozen, file.order)
    ).code()
    read_skill_file(changed)
    return changed


def _add(entries: list[Any], edit: Edit, place: int | None) -> None:
    if place is not None:
        raise SkillFileError(
            f"the {edit.kind} {edit.name!r} is already there: revise it, or choose another name"
        )
    if edit.text is None:
        raise SkillFileError(f"a {edit.kind} that is added needs a text")
    if edit.kind == "instruction":
        entries.append(Instruction(name=edit.name, text=edit.text))
        return
    if edit.scope is None:
        raise SkillFileError("a skill that is added needs a scope")
    entries.append(Skill(name=edit.name, scope=edit.scope, text=edit.text))


def _revise(entries: list[Any], edit: Edit, place: int) -> None:
    changes = {key: value for key, value in (("scope", edit.scope), ("text", edit.text)) if value is not None}
    revised = entries[place].model_copy(update=changes)
    if revised == entries[place]:
        raise SkillFileError(f"the revision of {edit.kind} {edit.name!r} changes nothing")
    entries[place] = revised


def _refuse_fields(edit: Edit) -> None:
    if edit.text is not None or edit.scope is not None:
        raise SkillFileError("an entry that is removed takes neither text nor scope")


def _assigned(node: ast.stmt) -> str | None:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) if name in _LISTS:
            return name
        case ast.AnnAssign(target=ast.Name(id=name)) if name in _LISTS:
            raise SkillFileError(f"line {node.lineno}: {name} is assigned without an annotation")
        case _:
            return None


def _entries(name: str, node: ast.stmt) -> list[Any]:
    assert isinstance(node, ast.Assign)
    try:
        value = ast.literal_eval(node.value)
    except (ValueError, TypeError, RecursionError):
        raise SkillFileError(f"line {node.lineno}: {name} must be a list of literal dictionaries") from None
    if not isinstance(value, list):
        raise SkillFileError(f"line {node.lineno}: {name} must be a list")
    return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


_Entry = TypeVar("_Entry", Instruction, Skill)


def _checked(kind: str, values: Sequence[Any], model: type[_Entry], most: int) -> tuple[_Entry, ...]:
    if len(values) > most:
        raise SkillFileError(f"there are at most {most} {kind}s, here are {len(values)}")
    entries: list[_Entry] = []
    for number, value in enumerate(values):
        try:
            entries.append(model.model_validate(value))
        except ValidationError as error:
            raise SkillFileError(f"{kind} {number + 1}, {first_problem(error)}") from None
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise SkillFileError(f"two {kind}s have the name {name!r}")
    return tuple(entries)


def first_problem(error: ValidationError) -> str:
    """The first problem of a model: its field, and what is wrong."""
    found = error.errors()[0]
    return f"field {'.'.join(map(str, found['loc'])) or 'itself'}: {found['msg']}"


def _literal(name: str, entries: Sequence[Instruction | Skill]) -> str:
    if not entries:
        return f"{name} = []\n"
    # The JSON of texts is Python as well, and looks as a formatter leaves it.
    lines = [f"    {json.dumps(entry.model_dump(), ensure_ascii=False)},\n" for entry in entries]
    return f"{name} = [\n{''.join(lines)}]\n"


def scope_name(kind: Literal["family", "subtopic"], value: str) -> str:
    """A scope that covers one family or subtopic; white space folded."""
    return f"{kind}:{' '.join(value.split())}"
