"""The embedded engine behind HTTP, in the shapes of vLLM's completions API.

Served: `POST /v1/completions` with a token-id prompt, `GET /v1/models`, `/health`, `/stats` and
`POST /v1/load_weights`. Every refusal is one line in `{"error": {"message": ...}}`. Must not know how the
engine computes, or who starts the server (`process`).
"""

import asyncio
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from broker.engine.engine import EmbeddedEngine
from broker.errors import ModelUnavailable
from broker.model import Completion, Sampling

_CLIENT_LEFT: Final = 499
_WATCH_SECONDS: Final = 0.5


class CompletionRequest(BaseModel):
    """What is served of a vLLM completion request. Unknown fields are refused, so that none is ignored."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    prompt: list[int]
    """Token ids; the host applies the template and the tokenizer (HOST-06)."""
    max_tokens: int = Field(ge=1)
    temperature: float = Field(ge=0)
    top_p: float = 1.0
    top_k: int = -1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_p: Literal[0] = 0
    seed: int = Field(default=0, ge=0, lt=2**31)
    n: Literal[1] = 1
    echo: Literal[False] = False
    stream: Literal[False] = False
    stop: None = None
    logprobs: Literal[0, 1] | None = None
    return_token_ids: bool = True
    add_special_tokens: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def sampling(self) -> Sampling:
        return Sampling(**{name: getattr(self, name) for name in Sampling.model_fields})


def create_app(engine: EmbeddedEngine, model_name: str) -> Starlette:
    """The application; it owns nothing that must be closed (the caller closes the engine)."""

    async def completions(request: Request) -> Response:
        try:
            body = CompletionRequest.model_validate_json(await request.body())
            future = asyncio.wrap_future(engine.submit(body.prompt, body.sampling()))
        except ValidationError as error:
            return _refusal(400, _one_line(error))
        except ValueError as error:
            return _refusal(400, str(error))
        except ModelUnavailable as error:
            return _refusal(503, str(error))
        try:
            while not (await asyncio.wait([future], timeout=_WATCH_SECONDS))[0]:
                if await request.is_disconnected():
                    return Response(status_code=_CLIENT_LEFT)
            completion = future.result()
        except ModelUnavailable as error:
            return _refusal(503, str(error))
        finally:
            future.cancel()  # nobody waits any more: free the slot at the next step
        return JSONResponse(_completion_body(model_name, body.prompt, completion))

    async def models(_: Request) -> Response:
        entry = {
            "id": model_name,
            "object": "model",
            "owned_by": "rinr",
            "max_model_len": engine.max_length,
            "digest": engine.identity,
        }
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def stats(_: Request) -> Response:
        return JSONResponse(engine.stats())

    async def load_weights(request: Request) -> Response:
        try:
            path = _LoadRequest.model_validate_json(await request.body()).path
            identity = await asyncio.to_thread(engine.load_weights, Path(path))
        except ValidationError as error:
            return _refusal(400, _one_line(error))
        except ModelUnavailable as error:
            return _refusal(400, str(error))
        return JSONResponse({"digest": identity})

    return Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/load_weights", load_weights, methods=["POST"]),
            Route("/health", health),
            Route("/stats", stats),
        ]
    )


class _LoadRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str


def _completion_body(model_name: str, prompt: list[int], completion: Completion) -> dict[str, Any]:
    """vLLM's response. Texts are empty: the host decodes token ids itself."""
    generated = len(completion.token_ids)
    choice = {
        "index": 0,
        "text": "",
        "finish_reason": completion.finish_reason,
        "stop_reason": None,
        "token_ids": completion.token_ids,
        "prompt_token_ids": prompt,
        "logprobs": {
            "tokens": [f"token_id:{token}" for token in completion.token_ids],
            "token_logprobs": completion.logprobs,
            "top_logprobs": None,
            "text_offset": [0] * generated,
        },
    }
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": generated,
        "total_tokens": len(prompt) + generated,
    }
    return {
        "id": f"cmpl-{uuid4().hex}",
        "object": "text_completion",
        "model": model_name,
        "choices": [choice],
        "usage": usage,
    }


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=status)


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {first['msg']}"
