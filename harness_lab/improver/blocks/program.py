"""The program's own functions. Those that a set of traits does not need are left out."""

import json
import re
from typing import Any

SYSTEM = ""
FIND = ""
EXAMPLES: dict[str, list[tuple[str, str, str]]] = {}
BLOCK = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)


def say(role: str, content: str, source: str) -> dict[str, str]:
    return {"role": role, "content": content, "source": source}


def form_line(task: dict[str, Any]) -> str:
    """The line of the question that says how to answer."""
    lines = [line for line in task["prompt"].split("\n") if "<answer>" in line]
    return lines[-1] if lines else "Answer with <answer>VALUE</answer>."


def names_in(task: dict[str, Any]) -> list[str]:
    """Quoted names; else words that look like identifiers; else the options."""
    question = task["prompt"].split("\n")[0]
    quoted = re.findall(r'["“]([^"”]+)["”]', question)
    marked = re.findall(r"\b\w[\w.-]*[0-9][\w.-]*|\b[A-Z]{2,}\w*", question)
    return quoted or marked or list(task["options"])


def look_up(task: dict[str, Any], api: Any) -> dict[str, Any]:
    """The observation of one look-up of the question's names in all tables."""
    lines = [line for line in task["prompt"].split("\n") if "<answer>" not in line]
    asked = {
        "tables": [
            {key: table[key] for key in ("path", "delimiter")} for table in task["inventory"]["tables"]
        ],
        "names": names_in(task),
        "question": re.sub(r'["“][^"”]+["”]', "", "\n".join(lines)),
        "options": task["options"],
    }
    return api.execute(FIND.replace("ASKED", json.dumps(asked)))


def tables_text(task: dict[str, Any]) -> str:
    """The schema of every table, one line each."""
    tables = task["inventory"]["tables"]
    return "\n".join(f"{t['path']}: {', '.join(c['name'] for c in t['columns'])}" for t in tables)


def worked_examples(task: dict[str, Any], rows: str) -> list[dict[str, str]]:
    """Chat turns that show the form, laid out like the question that follows."""
    turns: list[dict[str, str]] = []
    for asked, seen, answer in EXAMPLES.get(task["answer_format"], EXAMPLES["text"]):
        question = f"{asked}\n{form_line(task)}"
        turns.append(say("user", f"{question}\n\n{seen}" if rows else question, "harness"))
        turns.append(say("assistant", f"<answer>{answer}</answer>", "harness"))
    return turns


def has_form(text: str) -> bool:
    return text.count("<answer>") == 1 and text.count("</answer>") == 1


def last_pair(text: str) -> str:
    """The last answer of a text that gives several; any other text as it is."""
    pairs = re.findall(r"<answer>(?:(?!<answer>).)*?</answer>", text, re.DOTALL)
    return pairs[-1] if len(pairs) > 1 else text


def recent(messages: list[dict[str, str]], head: int, task: dict[str, Any], api: Any) -> list[dict[str, str]]:
    """All messages, or the first ones and the newest two where the next observation may not fit any more."""
    if api.left["context_tokens"] > 2 * task["budgets"]["tool_response_tokens"]:
        return messages
    return messages[:head] + messages[head:][-2:]
