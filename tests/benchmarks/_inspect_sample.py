"""The peer of `inspect_peer`: runs in an environment that has Inspect AI and nothing of ours. Prints JSON."""
# pyright: basic

import json
import resource
import sys
import time
from typing import Any

import inspect_ai
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

MODEL = "mockllm/model"
ANSWER = "<answer>A</answer>"
SYSTEM = "You answer questions about tables. " * 12
QUESTION = "Which metal of the table melts last? Think, look, answer. " * 4


@tool
def python() -> Any:
    async def execute(code: str) -> str:
        """Run code.

        Args:
            code: Python code.
        """
        return "name,melting_point 5"

    return execute


def _answer(messages: list[Any], *rest: object) -> ModelOutput:
    """Two tool calls, then the answer."""
    if sum(message.role == "assistant" for message in messages) < 2:
        output = ModelOutput.for_tool_call(MODEL, "python", {"code": "print(rows[0], len(rows))"})
    else:
        output = ModelOutput.from_content(MODEL, ANSWER)
    output.usage = ModelUsage(input_tokens=200, output_tokens=10, total_tokens=210)
    return output


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run(samples: int, in_flight: int) -> dict[str, Any]:
    task = Task(
        dataset=[Sample(id=number, input=QUESTION, target=ANSWER) for number in range(samples)],
        solver=[system_message(SYSTEM), use_tools(python()), generate()],
        scorer=match(),
    )
    before, began = _cpu(), time.monotonic()
    (log,) = evaluate(
        task,
        model=get_model(MODEL, custom_outputs=_answer),
        display="none",
        log_level="warning",
        max_samples=in_flight,
        max_connections=in_flight,
    )
    seconds, cpu = time.monotonic() - began, _cpu() - before
    assert log.status == "success", log.error
    assert log.samples is not None
    assert len(log.samples) == samples
    assert {len(sample.messages) for sample in log.samples} == {7}
    return {"version": inspect_ai.__version__, "cpu_ms": 1000 * cpu / samples, "rate": samples / seconds}


if __name__ == "__main__":
    count, at_once = int(sys.argv[1]), int(sys.argv[2])
    run(at_once, at_once)  # warm up
    print(json.dumps(run(count, at_once)))
