"""Turn a Llama-architecture GGUF file into an ordinary model folder (bf16 safetensors, tokenizer, template).

Owns the facts of the GGUF format that matter here: tensor names, the permuted rotary rows of the query and
key projections, and the pre-tokenizer that the file only names. Works offline; needs `gguf`, `tokenizers`,
`torch` and `safetensors`. Must not know where models are cached (`default_model`).

Run as its own process, so that the memory goes back: `python -m broker.engine.gguf_conversion SOURCE TARGET`.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final, cast

import gguf
import torch
from gguf import GGUFReader
from safetensors import torch as safetensors_torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_TENSOR_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN: Final = 3


class ConversionError(Exception):
    """The GGUF file is not one that this converter understands."""


class _Metadata:
    """Key-value part of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader

    def get(self, key: str) -> Any:
        field = self._reader.fields.get(key)
        if field is None:
            raise ConversionError(f"the GGUF file has no key {key}")
        return field.contents()


def convert(source: Path, target: Path) -> None:
    """Write the model folder `target` (which must exist and be empty) from the GGUF file `source`."""
    reader = GGUFReader(str(source))
    metadata = _Metadata(reader)
    if metadata.get("general.architecture") != "llama":
        raise ConversionError(
            f"{source.name} holds a {metadata.get('general.architecture')} model, not llama"
        )
    config = _model_config(metadata, tied="output.weight" not in {tensor.name for tensor in reader.tensors})
    _write_json(target / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(target / "generation_config.json", special)
    _write_tokenizer(metadata, config, target)
    tensors = {
        _hugging_face_name(tensor.name): _weights(tensor, config).to(torch.bfloat16).contiguous()
        for tensor in reader.tensors
    }
    cast("Any", safetensors_torch).save_file(
        tensors, str(target / "model.safetensors"), metadata={"format": "pt"}
    )
    (target / "model.safetensors").chmod(0o644)  # as the other files; safetensors writes it private


def _model_config(metadata: _Metadata, *, tied: bool) -> dict[str, Any]:
    heads = int(metadata.get("llama.attention.head_count"))
    hidden = int(metadata.get("llama.embedding_length"))
    theta = float(metadata.get("llama.rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(metadata.get("llama.vocab_size")),
        "hidden_size": hidden,
        "intermediate_size": int(metadata.get("llama.feed_forward_length")),
        "num_hidden_layers": int(metadata.get("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv")),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(metadata.get("llama.context_length")),
        # The file keeps this as a 32-bit float; six digits give back the number that was meant.
        "rms_norm_eps": float(f"{metadata.get('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": int(metadata.get("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(metadata.get("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(metadata.get("tokenizer.ggml.padding_token_id")),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def _hugging_face_name(name: str) -> str:
    top = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in top:
        return top[name]
    block, layer, part, kind = name.split(".")
    if block != "blk" or part not in _TENSOR_NAMES:
        raise ConversionError(f"the GGUF file has the unknown tensor {name}")
    return f"model.layers.{layer}.{_TENSOR_NAMES[part]}.{kind}"


def _weights(tensor: Any, config: dict[str, Any]) -> torch.Tensor:
    values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
    if ".attn_q." in tensor.name:
        return _undo_rotary_permutation(values, config["num_attention_heads"])
    if ".attn_k." in tensor.name:
        return _undo_rotary_permutation(values, config["num_key_value_heads"])
    return values


def _undo_rotary_permutation(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF interleaves the two halves of each head's rotary rows; Hugging Face keeps them apart."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _write_tokenizer(metadata: _Metadata, config: dict[str, Any], target: Path) -> None:
    name = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if name != ("gpt2", "smollm"):
        raise ConversionError(f"the GGUF file's tokenizer is {name[0]}/{name[1]}; only gpt2/smollm is known")
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in metadata.get("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # "smollm" means: every digit is a piece of its own, then GPT-2's byte-level split.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(target / "tokenizer.json"))
    template: str = metadata.get("tokenizer.chat_template")
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[config["bos_token_id"]],
            "eos_token": tokens[config["eos_token_id"]],
            "pad_token": tokens[config["pad_token_id"]],
            "unk_token": tokens[int(metadata.get("tokenizer.ggml.unknown_token_id"))],
            "additional_special_tokens": special,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "chat_template": template,
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> int:
    source, target = (Path(argument) for argument in sys.argv[1:3])
    try:
        convert(source, target)
    except ConversionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
