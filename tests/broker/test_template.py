"""The host's chat template gives the ids that transformers gives, for any model folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from broker.errors import ModelUnavailable
from broker.template import ChatTemplate, _control_pattern
from tests.fixtures.build_tiny_model import build
from tests.fixtures.episodes import TINY_MODEL, template

CHAT = [
    {"role": "system", "content": "You can run Python.\n  Tables: /lake \u00e9\U0001f9ec"},
    {"role": "user", "content": 'In which gene does "rs12" lie?\n'},
    {"role": "assistant", "content": "<execute>\nprint(1)\n</execute>"},
    {"role": "tool", "content": "Observation: {'stdout': '1\\n', 'error': ''}"},
]
ELABORATE = """{{- bos_token -}}
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}{{ raise_exception('a system turn first') }}{% endif %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
    {% generation %}{{ message | tojson }}{% endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""


def transformers_ids(folder: Path, messages: list[dict[str, str]]) -> tuple[int, ...]:
    # The class that AutoTokenizer gives for such a folder; imported alone it does not pull in torch.
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    tokenizer: Any = TokenizersBackend.from_pretrained(str(folder))
    return tuple(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=False, return_dict=False
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build(path, weights=False)
    return path


@pytest.mark.spec("HOST-06")
def test_ids_equal_those_of_transformers(folder: Path) -> None:
    assert ChatTemplate.load(folder).encode(CHAT) == transformers_ids(folder, CHAT)


@pytest.mark.spec("HOST-06")
def test_an_elaborate_template_kept_inside_the_config_gives_the_same_ids(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["bos_token"] = {"__type": "AddedToken", "content": config["bos_token"], "special": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": ELABORATE}))
    ours = ChatTemplate.load(tmp_path)
    assert ours.encode(CHAT) == transformers_ids(tmp_path, CHAT)
    assert "<think>" in ours.render(CHAT), "thinking must be switched off explicitly"
    with pytest.raises(ValueError, match="a system turn first"):
        ours.encode(CHAT[1:])


def test_the_committed_tiny_model_is_what_its_builder_builds(folder: Path) -> None:
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (TINY_MODEL / name).read_bytes()
    assert (TINY_MODEL / "tokenizer.json").stat().st_size < 60_000


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=200).filter(lambda text: "<|" not in text))
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    ids = template().encode_text(text)
    assert template().decode(ids) == text
    assert template().count(text) == len(ids)


_PIECES = st.lists(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "|>", " ", "\n", "a", "12"])
    | st.text(max_size=12),
    max_size=12,
)


@pytest.mark.spec("HOST-06")
@settings(max_examples=300, deadline=None)
@given(_PIECES.map("".join))
def test_ids_of_remembered_messages_are_those_of_the_whole_text(text: str) -> None:
    assert template()._between is not None, "this tokenizer falls into pieces"
    whole = template()._tokenizer.encode(text, add_special_tokens=False).ids
    for _ in range(2):
        assert template().encode_text(text) == tuple(whole)


def _edited(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]) -> Tokenizer:
    plain = json.loads(tokenizer.to_str())
    change(plain)
    return Tokenizer.from_str(json.dumps(plain))


@pytest.mark.spec("HOST-06")
@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain["added_tokens"][0].update(rstrip=True),
        lambda plain: plain["added_tokens"][-1].update(normalized=True),
        lambda plain: plain["added_tokens"].clear(),
        lambda plain: plain.update(normalizer={"type": "Prepend", "prepend": "_"}),
        lambda plain: plain.update(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True},
                ],
            }
        ),
    ],
    ids=[
        "takes space along",
        "normalised first",
        "no control tokens",
        "prepends",
        "looks at the start",
    ],
)
def test_a_tokenizer_that_looks_beyond_a_message_is_given_the_whole_text(
    change: Callable[[dict[str, Any]], object],
) -> None:
    tokenizer = template()._tokenizer
    assert _control_pattern(tokenizer) is not None
    assert _control_pattern(_edited(tokenizer, change)) is None


def test_special_tokens_are_left_out_of_decoded_text_and_end_ids_are_read() -> None:
    ids = (*template().encode_text("<answer>B</answer>"), *template().end_ids)
    assert template().decode(ids) == "<answer>B</answer>"
    assert template().decode(ids, skip_special=False).endswith("<|im_end|>")


def test_the_digest_follows_tokenizer_and_template(folder: Path, tmp_path: Path) -> None:
    build(tmp_path, weights=False)
    assert ChatTemplate.load(tmp_path).digest == ChatTemplate.load(folder).digest
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert ChatTemplate.load(tmp_path).digest != ChatTemplate.load(folder).digest


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not a tokenizer"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "not JSON"),
    ],
)
def test_a_spoilt_model_folder_gives_one_line_that_names_the_file(
    tmp_path: Path, spoil: Any, words: str
) -> None:
    build(tmp_path, weights=False)
    spoil(tmp_path)
    with pytest.raises(ModelUnavailable, match=words) as caught:
        ChatTemplate.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_model_folder_is_named() -> None:
    with pytest.raises(ModelUnavailable, match="no model folder /nowhere"):
        ChatTemplate.load(Path("/nowhere"))
