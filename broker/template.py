"""A task model's tokenizer and chat template, from its folder: messages in, token ids out (HOST-06).

The host applies the template, so every engine sees the same ids. The rendering equals `apply_chat_template`
of transformers (a test compares them) without importing it. Thinking is off. A template that asks for today's
date finds no clock: a prompt must not change overnight. Knows nothing of budgets or episodes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any, NoReturn, cast

import jinja2
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as loop_controls
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from broker.clipping import clip_text
from broker.errors import ModelUnavailable
from catalog.digest import digest_bytes, digest_json

_PLAIN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
"""Counts any sequence of messages, a little high where the two marks are no tokens of their own."""
_REMEMBERED = 16_000
"""Characters of the longest message whose ids are kept."""
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _GenerationBlock(Extension):
    """Templates may mark the assistant's part with `{% generation %}`; rendering ignores the mark."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own contract)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return str(caller())


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loop_controls]
    )
    environment.filters["tojson"] = _to_json
    cast("dict[str, Any]", environment.globals)["raise_exception"] = _refuse
    return environment.from_string(source)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelUnavailable(
            f"the model folder {path.parent} has no readable {path.name} ({error.strerror}): "
            "give a Hugging Face model folder with tokenizer.json, tokenizer_config.json and config.json"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise ModelUnavailable(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path} must hold a JSON object")
    return cast("dict[str, Any]", value)


def _optional_json(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.exists() else {}


def _token_text(value: Any) -> str | None:
    content = cast("Mapping[str, Any]", value).get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    merged = {**_optional_json(folder / "special_tokens_map.json"), **config}
    named = {name: _token_text(merged.get(name)) for name in _NAMED_TOKENS}
    return {name: text for name, text in named.items() if text is not None}


def _template_source(folder: Path, config: Mapping[str, Any]) -> str:
    beside = folder / "chat_template.jinja"
    if beside.exists():
        return _read(beside).decode()
    source: Any = config.get("chat_template")
    if isinstance(source, list):
        named = cast("list[Mapping[str, Any]]", source)
        source = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if not isinstance(source, str):
        raise ModelUnavailable(
            f"the model folder {folder} has no chat template: add chat_template.jinja or a chat_template in "
            "tokenizer_config.json (a base model without one cannot be used)"
        )
    return source


def _vocabulary(folder: Path, tokenizer: Tokenizer) -> int:
    """Ids are below this: an embedding may be padded past the tokenizer's last id."""
    config = _optional_json(folder / "config.json")
    nested: Any = config.get("text_config")
    sizes = [config.get("vocab_size")]
    sizes += [cast("Mapping[str, Any]", nested).get("vocab_size")] if isinstance(nested, Mapping) else []
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    return max([max(ids, default=0) + 1, *(size for size in sizes if isinstance(size, int))])


_BY_ITSELF = frozenset({"BPE", "ByteLevel", "Digits", "NFC", "Sequence", "Split"})
"""Steps of a tokenizer that look at one piece of a text between control tokens and at nothing around it."""


def _control_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Finds the tokens at which a text falls into pieces with ids of their own; None where it does not."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    plain = all(
        token.content and not (token.normalized or token.single_word or token.lstrip or token.rstrip)
        for token in added
    )
    steps = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.model)
    if not added or not plain or tokenizer.encode_special_tokens or not _BY_ITSELF.issuperset(_types(steps)):
        return None
    # The longest first, as the tokenizer itself does.
    contents = sorted((token.content for token in added), key=lambda content: (-len(content), content))
    return re.compile(f"({'|'.join(map(re.escape, contents))})")


def _types(steps: Iterable[Any]) -> set[str]:
    found: set[str] = set()
    for step in steps:
        if step is None:
            continue
        found.add(type(step).__name__)
        if type(step).__name__ == "Sequence":
            found |= _types(_parts(step))
    return found


def _parts(sequence: Any) -> Iterator[Any]:
    for index in count():
        try:
            yield sequence[index]
        except IndexError:
            return


def _end_ids(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        value: Any = _optional_json(folder / name).get("eos_token_id")
        if isinstance(value, int):
            return (value,)
        if isinstance(value, list) and value:
            return tuple(cast("list[int]", value))
    return ()


class ChatTemplate:
    """Renders, encodes, decodes, counts and clips for one model. Safe to share between tasks."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str,
        special_tokens: Mapping[str, str],
        end_ids: tuple[int, ...],
        digest: str,
        vocabulary: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = _compile(source)
        self._special_tokens = dict(special_tokens)
        self.end_ids = end_ids
        """Ids that end a turn, from the generation config, else the config."""
        self.digest = digest
        """Of tokenizer.json, the chat template and the named special tokens."""
        self.vocabulary = vocabulary
        """Ids that an engine may give are below this."""
        self.count = lru_cache(maxsize=4096)(self._count)
        self._between = _control_pattern(tokenizer)
        self._piece_ids = lru_cache(maxsize=1024)(self._ids)
        added = tokenizer.get_added_tokens_decoder().values()
        self._control = tuple(sorted(token.content for token in added if token.special and token.content))

    @classmethod
    def load(cls, model_dir: Path, *, counting: bool = False) -> "ChatTemplate":
        """Read a model folder. Raises `ModelUnavailable` with one line that names the missing file.

        `counting`: only to count for an endpoint that applies a template of its own; a plain one, which
        refuses no messages, stands for it, and tokenizer.json is all that the folder needs.
        """
        if not model_dir.is_dir():
            raise ModelUnavailable(
                f"there is no model folder {model_dir}: check the path, or download the model first"
            )
        raw = _read(model_dir / "tokenizer.json")
        config = _optional_json(model_dir / "tokenizer_config.json")
        source = _PLAIN_TEMPLATE if counting else _template_source(model_dir, config)
        special_tokens = _special_tokens(model_dir, config)
        try:
            tokenizer = Tokenizer.from_str(raw.decode())
        except Exception as error:  # tokenizers raises the bare class
            raise ModelUnavailable(f"{model_dir / 'tokenizer.json'} is not a tokenizer: {error}") from error
        # A saved tokenizer may carry padding or truncation of its last use.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        digest = digest_json(
            {"tokenizer": digest_bytes(raw), "template": source, "special_tokens": special_tokens}
        )
        vocabulary = _vocabulary(model_dir, tokenizer)
        return cls(tokenizer, source, special_tokens, _end_ids(model_dir), digest, vocabulary)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text: messages reduced to role and content, then the generation prompt.

        Raises ValueError if the template refuses the messages (for example two user turns in a row).
        """
        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        try:
            return self._template.render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                enable_thinking=False,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error

    def encode(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Prompt ids of a conversation. ValueError as `render`."""
        return self.encode_text(self.render(messages))

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of a text as it stands, no special tokens added.

        A prompt repeats the messages of the one before it. Where the tokenizer works on each by itself
        (`_control_pattern`), their ids are remembered.
        """
        if self._between is None:
            return self._ids(text)
        pieces = [piece for piece in self._between.split(text) if piece]
        return tuple(
            chain.from_iterable(
                self._piece_ids(piece) if len(piece) <= _REMEMBERED else self._ids(piece) for piece in pieces
            )
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of generated ids. Raises `ModelUnavailable` for an id that this model cannot give."""
        if (highest := max(ids, default=0)) >= self.vocabulary:
            # The tokenizer would leave it out without a word.
            raise ModelUnavailable(
                f"the token id {highest} is not among the model's {self.vocabulary}: the engine serves "
                "another model than model.name says"
            )
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The code points [start, end) that each token covers."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets

    def defuse(self, text: str) -> str:
        """The text with each control token that it spells taken apart: `< |im_end|>` ends no turn."""
        for attempt in range(len(text) + 1):
            spelt = [token for token in self._control if token in text]
            if not spelt:
                break
            for token in spelt:
                # Taking one apart could spell another; leaving it out ends that for certain.
                apart = f"{token[0]} {token[1:]}" if len(token) > 1 and attempt < 4 else ""
                text = text.replace(token, apart)
        return text

    def clip(self, text: str, limit: int) -> str:
        """Head and tail of a text in at most `limit` tokens."""
        return clip_text(text, limit, self)
