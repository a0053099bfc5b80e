"""How one chat endpoint wants to be asked: structured output, length parameter, sampling, effort.

Endpoints refuse a parameter that they do not know with 400 or 422. A refusal teaches a poorer manner, kept
only once a request in it was answered, so that a refusal for another reason teaches nothing. Must not know
what is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from broker.chat_model import LengthParameter
from broker.endpoint import EndpointRefused

ResponseFormat = Literal["json_schema", "json_object", "none"]
_POORER: Final[Mapping[ResponseFormat, ResponseFormat]] = {
    "json_schema": "json_object",
    "json_object": "none",
}
_FORMAT_WORDS: Final = ("response_format", "json_schema", "json_object", "schema", "guided", "grammar")


@dataclass(frozen=True)
class Shape:
    """The JSON that a reply should be: a name and a JSON schema in which every property is required."""

    name: str
    schema: Mapping[str, Any]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of its properties."""
        return tuple(self.schema.get("properties", ()))


class Manner(BaseModel):
    """What is sent to an endpoint. It only ever gets poorer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    response_format: ResponseFormat = "json_schema"
    length_parameter: LengthParameter = "max_tokens"
    temperature: bool = True
    """False: the endpoint takes only its own temperature."""
    seed: bool = True
    effort: str | None = None
    """Value of `reasoning_effort`; None is not sent."""

    def parameters(
        self, *, temperature: float, seed: int, max_tokens: int, shape: Shape | None
    ) -> dict[str, Any]:
        """The request's parameters beside model and messages."""
        sent: dict[str, Any] = {self.length_parameter: max_tokens}
        if self.temperature:
            sent["temperature"] = temperature
        if self.seed:
            sent["seed"] = seed
        if self.effort is not None:
            sent["reasoning_effort"] = self.effort
        if shape is not None and self.response_format == "json_schema":
            named = {"name": shape.name, "schema": dict(shape.schema), "strict": True}
            sent["response_format"] = {"type": "json_schema", "json_schema": named}
        elif shape is not None and self.response_format == "json_object":
            sent["response_format"] = {"type": "json_object"}
        return sent

    def poorer(self, refused: EndpointRefused, *, shaped: bool) -> "Manner | None":
        """The next manner to try after this refusal; None when it is not about a parameter.

        `shaped`: the refused request asked for structured output.
        """
        if refused.status not in (400, 422):
            return None
        said = refused.said.lower()
        formatted = shaped and self.response_format != "none"
        if formatted and any(word in said for word in _FORMAT_WORDS):
            return self._less_structured()
        if "max_completion_tokens" in said and self.length_parameter == "max_tokens":
            return self.model_copy(update={"length_parameter": "max_completion_tokens"})
        if self.effort is not None and ("effort" in said or "reasoning" in said):
            return self.model_copy(update={"effort": None})
        for name in ("temperature", "seed"):
            if name in said and getattr(self, name):
                return self.model_copy(update={name: False})
        return self._less_structured() if formatted else None

    def _less_structured(self) -> "Manner":
        return self.model_copy(update={"response_format": _POORER[self.response_format]})
