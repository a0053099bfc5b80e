"""A loop like H0's whose words stand in entries. The improver `skills` edits the two lists, nothing else."""

import re
from typing import Any

INSTRUCTIONS = [
    {"name": "tool budget", "text": "You may run code {tools} times."},
]
SKILLS = []

BLOCK = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
FINAL_NOTE = "No more code can be run. Give your final answer now."
ONE_BLOCK_NOTE = "Write exactly one complete <execute>code</execute> block, or your final answer."


def note(text: str) -> dict[str, str]:
    return {"role": "user", "content": text, "source": "harness"}


def entries_for(task: dict[str, Any]) -> list[str]:
    """Instructions always; then skills for all, for the task's family, for its subtopic, in file order."""
    family, subtopic = (" ".join(task[key].split()) for key in ("family", "subtask"))
    skills: list[dict[str, str]] = SKILLS
    texts = [entry["text"] for entry in INSTRUCTIONS]
    texts += [e["text"] for e in skills if e["scope"] in ("all", f"family:{family}", f"subtopic:{subtopic}")]
    return [text.replace("{tools}", str(task["budgets"]["tool_calls"])) for text in texts]


def run(task: dict[str, Any], api: Any) -> None:
    budgets = task["budgets"]
    calls, tools = budgets["model_calls"], budgets["tool_calls"]
    system = "\n".join([task["system"], *entries_for(task)])
    messages: list[dict[str, str]] = [
        {"role": "system", "content": system, "source": "harness"},
        {"role": "user", "content": task["prompt"], "source": "task"},
    ]
    while calls > 0:
        answer_only = calls == 1 or tools == 0
        if answer_only:
            messages.append(note(FINAL_NOTE))
        text = api.generate(messages)
        calls -= 1
        messages.append({"role": "assistant", "content": text, "source": "model"})
        blocks = BLOCK.findall(text)
        if len(blocks) == 1 and text.count("<execute>") == 1 and not answer_only:
            seen = api.execute(blocks[0])
            tools -= 1
            messages.append({"role": "user", "content": f"Observation: {seen}", "source": "tool"})
        elif "<execute>" in text:
            if answer_only:
                return
            messages.append(note(ONE_BLOCK_NOTE))
        else:
            result = api.submit(text)
            messages.append({"role": "user", "content": result["reply"], "source": "feedback"})
