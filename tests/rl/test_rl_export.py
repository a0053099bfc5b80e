import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from catalog.store import Store
from rl.acceptance import check_export
from rl.errors import ExportRefused, TrainingError
from rl.export import write_export
from rl.manifest import MANIFEST, describe_folder, read_manifest
from rl.panel import Panel, Spoken, check_panel, make_panel, score_panel
from rl.weights import INDEX, WEIGHTS
from tests.fixtures.episodes import TINY_MODEL


def trained_model() -> LlamaForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn(value.shape, generator=generator) * 0.01)
        # As the engine keeps projections: column by column.
        layer = model.model.layers[0].mlp.up_proj
        layer.weight.data = layer.weight.data.t().contiguous().t()
    return model.eval()


def same_model(loaded: LlamaForCausalLM, trained: LlamaForCausalLM) -> None:
    """The very weights; what they compute may differ by the order of a product, which goes by the layout."""
    kept, wanted = loaded.state_dict(), trained.state_dict()
    assert kept.keys() == wanted.keys()
    assert all(torch.equal(kept[name], value) for name, value in wanted.items())
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(loaded(ids).logits, trained(ids).logits)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "export"
    write_export(trained_model(), TINY_MODEL, folder)
    return folder


@pytest.fixture
def export(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "export"))


def seal(folder: Path) -> None:
    """Give a changed folder a manifest that fits it, so that only the later checks can notice."""
    (folder / MANIFEST).write_text(json.dumps(describe_folder(folder).model_dump(mode="json")))


def refusal(folder: Path, **options: str) -> ExportRefused:
    with pytest.raises(ExportRefused) as caught:
        check_export(folder, TINY_MODEL, **options)
    return caught.value


@pytest.mark.spec("EXP-01", "RL-12")
def test_an_export_holds_weights_configs_tokenizer_and_template_and_nothing_of_the_optimiser(
    original: Path,
) -> None:
    names = {path.name for path in original.iterdir()}
    assert names == {
        WEIGHTS,
        MANIFEST,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (original / name).read_bytes() == (TINY_MODEL / name).read_bytes()


@pytest.mark.spec("EXP-01")
def test_an_export_loads_as_an_ordinary_model_folder_with_the_very_weights(original: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(original)
    same_model(loaded, trained_model())
    assert AutoTokenizer.from_pretrained(original).chat_template
    assert check_export(original, TINY_MODEL) == read_manifest(original)


def test_an_export_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    class Broken:
        def state_dict(self) -> dict[str, torch.Tensor]:
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        write_export(Broken(), TINY_MODEL, tmp_path / "export")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "export").mkdir()
    with pytest.raises(TrainingError, match="choose a new folder"):
        write_export(trained_model(), TINY_MODEL, tmp_path / "export")


def test_another_dtype_is_written_and_said(tmp_path: Path) -> None:
    manifest = write_export(trained_model(), TINY_MODEL, tmp_path / "export", dtype="bfloat16")
    assert manifest.dtype == "bfloat16"
    assert load_file(tmp_path / "export" / WEIGHTS)["model.norm.weight"].dtype == torch.bfloat16
    check_export(tmp_path / "export", TINY_MODEL, dtype="bfloat16")
    assert refusal(tmp_path / "export").reason == "dtype"


@pytest.mark.spec("EXP-03")
def test_a_corrupted_a_truncated_and_an_incomplete_export_are_refused(export: Path) -> None:
    data = (export / WEIGHTS).read_bytes()
    (export / WEIGHTS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert WEIGHTS in str(refusal(export))
    (export / WEIGHTS).write_bytes(data[:-100])
    assert refusal(export).reason == "manifest"
    seal(export)
    assert refusal(export).reason == "weights_unreadable"
    (export / WEIGHTS).unlink()
    seal(export)
    assert refusal(export).reason == "weights_unreadable"
    (export / MANIFEST).unlink()
    assert refusal(export).reason == "manifest"


@pytest.mark.spec("EXP-03")
def test_a_file_that_the_manifest_does_not_know_is_refused(export: Path) -> None:
    (export / "optimizer.pt").write_bytes(b"moments")
    assert "optimizer.pt" in str(refusal(export))


@pytest.mark.spec("EXP-03")
def test_weights_equal_to_the_base_are_refused(export: Path) -> None:
    shutil.copy(TINY_MODEL / WEIGHTS, export / WEIGHTS)
    seal(export)
    assert refusal(export).reason == "weights_equal_base"


@pytest.mark.spec("EXP-03")
def test_an_fsdp_architecture_name_is_refused(export: Path) -> None:
    config = json.loads((export / "config.json").read_text())
    (export / "config.json").write_text(json.dumps({**config, "architectures": ["FSDPLlamaForCausalLM"]}))
    seal(export)
    assert refusal(export).reason == "architecture"


@pytest.mark.spec("EXP-03")
def test_another_tokenizer_and_a_missing_or_changed_template_are_refused(export: Path) -> None:
    tokenizer = (export / "tokenizer.json").read_text()
    (export / "tokenizer.json").write_text(tokenizer + " ")
    seal(export)
    assert refusal(export).reason == "tokenizer"
    (export / "tokenizer.json").write_text(tokenizer)
    (export / "chat_template.jinja").write_text("{{ messages }}")
    seal(export)
    assert refusal(export).reason == "chat_template"
    (export / "chat_template.jinja").unlink()
    seal(export)
    assert refusal(export).reason == "chat_template"


@pytest.mark.spec("EXP-03")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensor: tensor.fill_(torch.nan), "weights_not_finite"),
        (lambda tensor: tensor[:-1].clone(), "architecture"),
        (lambda tensor: tensor.to(torch.float16), "dtype"),
    ],
)
def test_broken_weights_are_refused_by_name(export: Path, change: object, reason: str) -> None:
    tensors = load_file(export / WEIGHTS)
    tensors["model.norm.weight"] = change(tensors["model.norm.weight"])  # type: ignore[operator]
    save_file(tensors, export / WEIGHTS, metadata={"format": "pt"})
    seal(export)
    assert refusal(export).reason == reason


@pytest.mark.spec("EXP-03")
def test_the_panel_agrees_for_a_faithful_export_and_catches_one_changed_weight(tmp_path: Path) -> None:
    model = trained_model()
    write_export(model, TINY_MODEL, tmp_path / "export", dtype="bfloat16")
    panel = make_panel(model, [range(3, 40), range(100, 140)], "bfloat16")
    assert 0 < panel.rounding_gap() < 0.1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32)
    stored = Panel.model_validate_json(panel.model_dump_json())
    assert check_panel(stored, loaded).trainer_export < 1e-5
    with torch.no_grad():
        loaded.model.layers[1].mlp.down_proj.weight[0, 0] += 0.5
    with pytest.raises(ExportRefused, match="panel"):
        check_panel(stored, loaded)


@pytest.mark.parametrize("token", [5, 50])
def test_one_number_of_the_panel_that_is_not_finite_is_enough_to_refuse(token: int) -> None:
    # Of the first or of the last sequence: NaN must not get lost beside larger numbers.
    model = trained_model()
    panel = make_panel(model, [range(3, 20), range(40, 60)], "float32")
    assert check_panel(panel, model).trainer_export == 0.0
    with torch.no_grad():
        untied = model.model.embed_tokens.weight.clone()
        untied[token] = torch.nan
        model.model.embed_tokens.weight = torch.nn.Parameter(untied)
    with pytest.raises(ExportRefused, match="panel"):
        check_panel(panel, model)


@pytest.mark.spec("EXP-03")
def test_a_trainer_and_a_rollout_engine_that_disagree_are_refused_though_the_export_is_faithful() -> None:
    model = trained_model()
    panel = make_panel(model, [range(3, 20)], "float32")
    scores = score_panel(model, [range(3, 20)])[0]
    honest = Spoken(prompt_ids=(3,), completion_ids=tuple(range(4, 20)), engine=scores, trainer=scores)
    assert check_panel(panel.model_copy(update={"spoken": (honest,)}), model).engine_export < 1e-5
    other = honest.model_copy(update={"engine": (scores[0] - 0.01, *scores[1:])})
    with pytest.raises(ExportRefused, match=r"0.01 between rollout engine and export, 0.01 between trainer"):
        check_panel(panel.model_copy(update={"spoken": (other,)}), model)


@pytest.mark.spec("EXP-03")
def test_other_numbers_under_the_same_architecture_name_are_refused(export: Path) -> None:
    config = json.loads((export / "config.json").read_text())
    (export / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    seal(export)
    assert refusal(export).reason == "architecture"
    assert "num_key_value_heads is 4, the base has 2" in str(refusal(export))


@pytest.mark.spec("EXP-03")
def test_weights_under_another_name_than_a_loader_reads_are_refused(export: Path) -> None:
    (export / WEIGHTS).rename(export / "weights.safetensors")
    seal(export)
    assert refusal(export).reason == "weights_unreadable"
    shutil.copy(export / "weights.safetensors", export / WEIGHTS)
    seal(export)
    assert "weights.safetensors, which no loader reads" in str(refusal(export))


@pytest.mark.spec("EXP-03")
def test_shards_are_read_by_their_index_and_refused_where_it_is_wrong(export: Path) -> None:
    shard(export)
    seal(export)
    check_export(export, TINY_MODEL)
    loaded = AutoModelForCausalLM.from_pretrained(export)
    same_model(loaded, trained_model())
    index = json.loads((export / INDEX).read_text())
    places = index["weight_map"]
    swapped = {**places, "model.norm.weight": "model-00001-of-00002.safetensors"}
    (export / INDEX).write_text(json.dumps({**index, "weight_map": swapped}))
    seal(export)
    assert "says that model.norm.weight is in model-00001" in str(refusal(export))
    (export / INDEX).write_text(json.dumps(index))
    (export / "model-00002-of-00002.safetensors").unlink()
    seal(export)
    assert "misses the shard model-00002-of-00002.safetensors" in str(refusal(export))
    (export / INDEX).write_text("[]")
    seal(export)
    assert "no index of shards" in str(refusal(export))


def shard(folder: Path) -> None:
    """Split the weights of a folder into two files and an index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    places = {}
    for number, part in enumerate((names[:5], names[5:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.spec("EXP-01")
def test_an_export_of_a_base_without_a_generation_config_has_the_models_own(tmp_path: Path) -> None:
    base = Path(shutil.copytree(TINY_MODEL, tmp_path / "base"))
    (base / "generation_config.json").unlink()
    model = trained_model()
    model.generation_config.eos_token_id = [2, 7]
    write_export(model, base, tmp_path / "export")
    assert json.loads((tmp_path / "export" / "generation_config.json").read_text())["eos_token_id"] == [2, 7]
    check_export(tmp_path / "export", base)


@pytest.mark.spec("EXP-01")
def test_an_exports_identity_as_a_tree_follows_every_byte_and_survives_the_store(
    original: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    first = store.put_tree(original)
    write_export(trained_model(), TINY_MODEL, tmp_path / "again")
    assert store.put_tree(tmp_path / "again") == first
    store.checkout_tree(first.digest, tmp_path / "out")
    assert check_export(tmp_path / "out", TINY_MODEL) == read_manifest(original)
    for name in sorted(path.name for path in original.iterdir()):
        other = Path(shutil.copytree(original, tmp_path / f"changed-{name}"))
        data = (other / name).read_bytes()
        (other / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert store.put_tree(other).digest != first.digest
