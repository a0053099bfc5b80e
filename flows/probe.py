"""`rinr probe-auxiliary`: what the configured chat endpoint takes, how fast it is, and what it costs."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.compose import ConfigError, compose_config
from harness_lab.chat import AuxiliaryError
from harness_lab.probe import Probe, probe
from tasks.auxiliary import open_chat


async def probe_auxiliary(overrides: Sequence[str], console: Console) -> Probe:
    """Probe and print. Raises ConfigError without an endpoint, AuxiliaryError when it is not usable."""
    endpoint = open_chat(compose_config(overrides).auxiliary)
    if endpoint is None:
        raise ConfigError(
            "auxiliary=rules asks no endpoint: add auxiliary=chat auxiliary.base_url=URL auxiliary.model=NAME"
        )
    try:
        found = await probe(endpoint)
    finally:
        await endpoint.close()
    table = Table("what", "found", title=f"auxiliary {found.identity}", show_header=False)
    for name, value in rows(found):
        table.add_row(name, escape(value))
    console.print(table)
    if not found.usable:
        raise AuxiliaryError(f"the auxiliary is not usable: {found.problem}")
    return found


def rows(found: Probe) -> Iterator[tuple[str, str]]:
    """The table, one row a fact."""
    manner = found.manner
    counted = "" if found.reported else " (counted by the host)"
    yield "served as", found.served or "(no answer)"
    for step in found.steps:
        yield step.command, f"{step.outcome}, {step.seconds:.2f} s"
    yield "structured output", manner.response_format + (", JSON alone" if found.json_alone else "")
    yield "token limit", f"{manner.length_parameter}={found.max_tokens}"
    yield "reasoning_effort", found.effort + (f", {manner.effort} is sent" if manner.effort else "")
    yield (
        "temperature, seed",
        ", ".join(
            f"{name} {'sent' if sent else 'not taken'}"
            for name, sent in (("temperature", manner.temperature), ("seed", manner.seed))
        ),
    )
    for refusal in found.refusals:
        yield "refused", refusal
    yield "latency", f"{found.latency:.2f} s (median of {len(found.steps)})"
    yield "tokens", f"{found.prompt_tokens} prompt, {found.completion_tokens} completion{counted}"
    yield (
        "cost",
        "no prices configured" if found.cost is None else f"{found.cost:.6f} at the configured prices",
    )
    yield "usable", "yes" if found.usable else f"no: {found.problem}"
