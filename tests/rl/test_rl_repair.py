"""An export as SkyRL leaves it becomes a whole model folder, or is refused with the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from flows.cli import app
from rl.acceptance import check_export
from rl.errors import ExportRefused, TrainingError
from rl.export import write_export
from rl.manifest import MANIFEST, read_config
from rl.repair import Repaired, repair_export
from rl.weights import INDEX, WEIGHTS
from tests.fixtures.episodes import TINY_MODEL

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in bfloat16, as most models are published."""
    folder = tmp_path_factory.mktemp("base") / "base"
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    write_export(model, TINY_MODEL, folder, dtype="bfloat16")
    (folder / MANIFEST).unlink()
    return folder


@pytest.fixture
def found(base: Path, tmp_path: Path) -> Path:
    """`global_step_N/policy` as SkyRL 0.3 writes it: float32, the tied head again, no chat template."""
    folder = tmp_path / "global_step_2" / "policy"
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(4)
    tensors = {
        name: value.float() + torch.randn(value.shape, generator=generator) * 0.05
        for name, value in load_file(base / WEIGHTS).items()
    }
    save_file({**tensors, HEAD: tensors[EMBEDDING].clone()}, folder / WEIGHTS, metadata={"format": "pt"})
    edit(folder, read_config(base), dtype="float32", torch_dtype="float32", transformers_version="5.6.1")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    shutil.copy(base / "generation_config.json", folder / "generation_config.json")
    return folder


def edit(folder: Path, config: dict[str, object], **changes: object) -> None:
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def repaired(found: Path, base: Path, **options: str) -> tuple[Repaired, Path]:
    out = found.parents[1] / "out"
    return repair_export(found, base, out, **options), out  # type: ignore[arg-type]


def refusal(found: Path, base: Path) -> ExportRefused:
    with pytest.raises(ExportRefused) as caught:
        repaired(found, base)
    assert not (found.parents[1] / "out").exists()
    assert [path.name for path in found.parents[1].iterdir() if "out" in path.name] == []
    return caught.value


@pytest.mark.spec("EXP-03")
def test_what_skyrl_leaves_is_refused_as_it_is(found: Path, base: Path) -> None:
    with pytest.raises(ExportRefused, match="manifest"):
        check_export(found, base)


@pytest.mark.spec("EXP-01", "EXP-03")
def test_a_missing_chat_template_is_taken_from_the_base(found: Path, base: Path) -> None:
    result, out = repaired(found, base)
    assert "the base's chat template added" in result.repairs
    assert (out / "chat_template.jinja").read_bytes() == (base / "chat_template.jinja").read_bytes()
    assert (
        AutoTokenizer.from_pretrained(out).chat_template == AutoTokenizer.from_pretrained(base).chat_template
    )


@pytest.mark.spec("EXP-03")
def test_a_template_is_the_same_in_the_tokenizers_config_and_in_a_file_of_its_own(
    found: Path, base: Path
) -> None:
    inline = Path(shutil.copytree(base, found.parents[1] / "inline"))
    text = (inline / "chat_template.jinja").read_text()
    (inline / "chat_template.jinja").unlink()
    config = json.loads((inline / "tokenizer_config.json").read_text())
    (inline / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": text}))
    (found / "chat_template.jinja").write_text(text)
    result, out = repaired(found, inline)
    assert not any("template" in line for line in result.repairs)
    check_export(out, inline)
    shutil.rmtree(out)
    (found / "chat_template.jinja").write_text(text + "{# other #}")
    assert refusal(found, inline).reason == "chat_template"


@pytest.mark.spec("EXP-01", "EXP-03")
@pytest.mark.parametrize(
    ("dtype", "said"), [("base", "bfloat16"), ("bfloat16", "bfloat16"), ("float16", "float16")]
)
def test_float32_weights_are_rounded_to_the_declared_dtype(
    found: Path, base: Path, dtype: str, said: str
) -> None:
    result, out = repaired(found, base, dtype=dtype)
    assert f"weights: float32 -> {said}" in result.repairs
    target = getattr(torch, said)
    source, written = load_file(found / WEIGHTS), load_file(out / WEIGHTS)
    assert {value.dtype for value in written.values()} == {target}
    assert all(torch.equal(value, source[name].to(target)) for name, value in written.items())
    assert check_export(out, base, dtype=dtype) == result.manifest
    assert AutoModelForCausalLM.from_pretrained(out).dtype == target


@pytest.mark.spec("EXP-01")
def test_float32_can_be_kept_where_it_is_asked_for(found: Path, base: Path) -> None:
    result, out = repaired(found, base, dtype="float32")
    assert not any("->" in line for line in result.repairs)
    source = load_file(found / WEIGHTS)
    assert all(torch.equal(value, source[name]) for name, value in load_file(out / WEIGHTS).items())
    check_export(out, base, dtype="float32")


@pytest.mark.spec("EXP-03")
def test_an_fsdp_architecture_name_becomes_the_bases_and_any_other_is_refused(
    found: Path, base: Path
) -> None:
    config = read_config(found)
    edit(found, config, architectures=["FSDPLlamaForCausalLM"])
    result, out = repaired(found, base)
    assert "config.json: architecture FSDPLlamaForCausalLM -> LlamaForCausalLM" in result.repairs
    assert read_config(out) == read_config(base)
    shutil.rmtree(out)
    for name in (["MistralForCausalLM"], ["FSDPMistralForCausalLM"], []):
        edit(found, config, architectures=name)
        assert refusal(found, base).reason == "architecture"


def test_a_tied_head_written_twice_is_left_out_and_one_of_its_own_is_refused(found: Path, base: Path) -> None:
    result, out = repaired(found, base)
    assert any(line.startswith(f"weights: {HEAD} left out") for line in result.repairs)
    assert HEAD not in load_file(out / WEIGHTS)
    shutil.rmtree(out)
    tensors = load_file(found / WEIGHTS)
    tensors[HEAD][0, 0] += 1
    save_file(tensors, found / WEIGHTS, metadata={"format": "pt"})
    assert refusal(found, base).reason == "architecture"


def test_shards_stay_shards_with_an_index_of_what_was_written(found: Path, base: Path) -> None:
    tensors = load_file(found / WEIGHTS)
    (found / WEIGHTS).unlink()
    places = {name: f"model-{1 + (name == HEAD) * 2 + ('norm' in name)}.safetensors" for name in tensors}
    for file in set(places.values()):
        part = {name: value for name, value in tensors.items() if places[name] == file}
        save_file(part, found / file, metadata={"format": "pt"})
    (found / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    result, out = repaired(found, base)
    assert sorted(path.name for path in out.glob("*.safetensors")) == [
        "model-1.safetensors",
        "model-2.safetensors",
    ]
    assert json.loads((out / INDEX).read_text())["weight_map"] == {
        name: file for name, file in places.items() if name != HEAD
    }
    assert check_export(out, base) == result.manifest
    loaded = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(loaded[name], value.bfloat16()) for name, value in tensors.items())


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def pad_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "padding": padding}, indent=4))


@pytest.mark.parametrize("change", [drop_tokenizer, pad_tokenizer])
def test_a_tokenizer_that_is_missing_or_only_written_otherwise_becomes_the_bases(
    found: Path, base: Path, change: Callable[[Path], None]
) -> None:
    change(found)
    _, out = repaired(found, base)
    assert (out / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    check_export(out, base)


@pytest.mark.spec("EXP-03")
def test_another_tokenizer_or_template_is_refused_and_never_replaced(found: Path, base: Path) -> None:
    tokenizer = json.loads((found / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]
    (found / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert refusal(found, base).reason == "tokenizer"
    (found / "tokenizer.json").write_text("{}")
    assert refusal(found, base).reason == "tokenizer"
    shutil.copy(base / "tokenizer.json", found)
    (found / "chat_template.jinja").write_text("{{ messages }}")
    assert refusal(found, base).reason == "chat_template"


@pytest.mark.spec("EXP-03")
def test_a_truncated_export_is_refused_and_no_base_or_folder_is_a_clear_error(
    found: Path, base: Path
) -> None:
    data = (found / WEIGHTS).read_bytes()
    (found / WEIGHTS).write_bytes(data[:-64])
    assert refusal(found, base).reason == "weights_unreadable"
    with pytest.raises(TrainingError, match="no model folder"):
        repair_export(found, base / "missing", found.parents[1] / "out")
    (found / WEIGHTS).write_bytes(data)
    plain = Path(shutil.copytree(base, found.parents[1] / "plain"))
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(TrainingError, match=r"has no chat template: add chat_template\.jinja"):
        repaired(found, plain)
    (found.parents[1] / "out").mkdir()
    with pytest.raises(TrainingError, match="choose a new folder"):
        repaired(found, base)


@pytest.mark.spec("EXP-01")
def test_a_generation_config_is_the_bases_or_where_that_has_none_the_exports(found: Path, base: Path) -> None:
    name = "generation_config.json"
    (found / name).write_text('{"eos_token_id": [2, 7]}')
    _, out = repaired(found, base)
    assert (out / name).read_bytes() == (base / name).read_bytes()
    bare = Path(shutil.copytree(base, found.parents[1] / "bare"))
    (bare / name).unlink()
    shutil.rmtree(out)
    _, out = repaired(found, bare)
    assert (out / name).read_text() == '{"eos_token_id": [2, 7]}'
    check_export(out, bare)


@pytest.mark.spec("EXP-01", "RL-12")
def test_the_export_found_and_the_base_are_not_touched_and_nothing_else_is_taken_along(
    found: Path, base: Path
) -> None:
    (found / "optimizer.pt").write_bytes(b"moments")
    before = snapshot(found), snapshot(base)
    _, out = repaired(found, base)
    assert (snapshot(found), snapshot(base)) == before
    assert snapshot(out).keys() == {*snapshot(base), MANIFEST}


def test_the_command_says_what_it_changed_and_leaves_nothing_of_what_is_refused(
    found: Path, base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["repair", str(found), "--base", str(base), "--out", str(out)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "repaired: the base's chat template added" in result.output
    assert "repaired: weights: float32 -> bfloat16" in result.output
    check_export(out, base)
    shutil.rmtree(out)
    base_weights = {name: value.float() for name, value in load_file(base / WEIGHTS).items()}
    save_file(base_weights, found / WEIGHTS, metadata={"format": "pt"})
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "weights_equal_base" in result.output
    assert not out.exists()
    result = CliRunner().invoke(app, [*words, "--dtype", "int8"])
    assert result.exit_code == 2
    assert "choose base, bfloat16, float16, float32" in result.output
