"""Model folders: what is refused, and the conversion of a GGUF file, which must keep every logit."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import Tokenizer

import broker.engine.default_model as default_model
from broker.engine.default_model import DEFAULT_MODEL, find_model, model_digest
from broker.engine.gguf_conversion import ConversionError, convert
from broker.errors import ModelUnavailable
from tests.fixtures.tiny_llama import plain_model, write_tiny_llama

_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOKENS = ["<end>", "<start>", "Ġ", "Ċ", "a", "b", "1", "2", "ab", "12", "ĠĠ", "Ġa"]
_MERGES = ["a b", "1 2", "Ġ Ġ", "Ġ a"]


def _write_gguf(path: Path, model: Any, *, pre_tokenizer: str = "smollm") -> None:
    """The model as a converter for the GGUF world writes it: other names, interleaved rotary rows."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    filler = [f"<{index}>" for index in range(len(_TOKENS), config.vocab_size)]
    writer.add_token_list(_TOKENS + filler)
    writer.add_token_types([3, 3] + [1] * (config.vocab_size - 2))
    writer.add_token_merges(_MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        for part, count in heads.items():
            if part in name:
                rows, columns = tensor.shape
                tensor = (
                    tensor.view(count, 2, rows // count // 2, columns).transpose(1, 2).reshape(rows, columns)
                )
        writer.add_tensor(_gguf_name(name), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_PARTS[part]}.weight"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # A GGUF file keeps no head size: it is hidden / heads.
    folder = tmp_path_factory.mktemp("models") / "original"
    return plain_model(write_tiny_llama(folder, head_dim=8, rope_theta=50_000.0))


def test_a_converted_model_has_the_logits_of_the_original(original: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "model.gguf", tmp_path / "converted"
    _write_gguf(source, original)
    target.mkdir()
    convert(source, target)
    converted = plain_model(target)
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.equal(converted(ids).logits, original(ids).logits)
    assert converted.config.rope_parameters["rope_theta"] == 50_000.0
    assert (target / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"


def test_the_converted_tokenizer_keeps_every_digit_apart(original: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "model.gguf", tmp_path / "converted"
    _write_gguf(source, original)
    target.mkdir()
    convert(source, target)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert tokenizer.encode("<start>ab  12 a<end>").tokens == ["<start>", "ab", "ĠĠ", "1", "2", "Ġa", "<end>"]
    ids = tokenizer.encode("ab  12 a").ids
    assert tokenizer.decode(ids) == "ab  12 a"


def test_a_file_with_another_tokenizer_is_refused(original: Any, tmp_path: Path) -> None:
    _write_gguf(tmp_path / "model.gguf", original, pre_tokenizer="qwen2")
    (tmp_path / "converted").mkdir()
    with pytest.raises(ConversionError, match="gpt2/qwen2"):
        convert(tmp_path / "model.gguf", tmp_path / "converted")


def test_a_named_folder_is_returned_as_it_is(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    assert find_model(str(folder), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path: Path, missing: str) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(ModelUnavailable, match=missing.replace("model.", r"\*\.")):
        find_model(str(folder), tmp_path)


def test_a_name_that_is_neither_folder_nor_default_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=f"no model folder nowhere: .*{DEFAULT_MODEL}"):
        find_model("nowhere", tmp_path)


def test_the_identity_follows_weights_and_configuration(tmp_path: Path) -> None:
    first = model_digest(write_tiny_llama(tmp_path / "a"))
    assert model_digest(write_tiny_llama(tmp_path / "b")) == first
    assert model_digest(write_tiny_llama(tmp_path / "c", seed=1)) != first
    assert model_digest(write_tiny_llama(tmp_path / "d", rms_norm_eps=1e-3)) != first


def test_the_default_model_is_converted_once_in_a_process_of_its_own(
    original: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "model.gguf"
    _write_gguf(source, original)
    monkeypatch.setattr(default_model, "_packaged_file", lambda: source)
    folder = find_model(DEFAULT_MODEL, tmp_path / "cache")
    assert folder == tmp_path / "cache" / "models" / DEFAULT_MODEL
    source.unlink()
    assert find_model(DEFAULT_MODEL, tmp_path / "cache") == folder
    assert not [path for path in folder.parent.iterdir() if "partial" in path.name]


def test_a_failed_conversion_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"not a model")
    monkeypatch.setattr(default_model, "_packaged_file", lambda: source)
    with pytest.raises(ModelUnavailable, match=r"converting model\.gguf failed: "):
        find_model(DEFAULT_MODEL, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == [f".{DEFAULT_MODEL}.lock"]


def test_a_missing_package_names_the_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_PACKAGE", "no-such-package-here")
    with pytest.raises(ModelUnavailable, match=r"\./run setup"):
        find_model(DEFAULT_MODEL, tmp_path)
