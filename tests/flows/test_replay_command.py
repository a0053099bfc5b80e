"""`rinr replay` finds an episode by id, blob or file, and its exit code says what came of it."""

import asyncio
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from broker.record import GradedEpisode, episode_id
from broker.sandbox.base import SandboxFactory
from broker.sandbox.factory import Kind, open_factory
from catalog.database import Catalog
from catalog.store import Ref, Store
from flows.cli import app
from tests.broker.test_program_contract import REACT, solver
from tests.fixtures.episodes import TINY_MODEL, ScriptedModel, a_task, attempt, make_broker, release
from tests.fixtures.sandboxes import CACHE, real_sandboxes

CHANCE = (
    "import random\ndef run(task, api):\n    api.generate([{'role': 'user', 'content': task['prompt']}])\n"
    "    api.submit(str(random.random()))\n"
)


@dataclass(frozen=True)
class Storage:
    root: Path
    folder: Path
    blob: Ref
    ids: tuple[str, ...]
    """Of the steady program and of the one that draws a number."""
    lines: tuple[bytes, ...]


async def two_episodes(sandboxes: SandboxFactory) -> list[GradedEpisode]:
    broker = make_broker(ScriptedModel(policy=solver), sandboxes)
    made = await broker.run_all([attempt(code, a_task("symbol")) for code in (REACT, CHANCE)])
    await sandboxes.close()
    return [item for item in made if isinstance(item, GradedEpisode)]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    root = tmp_path_factory.mktemp("runs")
    episodes = asyncio.run(two_episodes(real_sandboxes()))
    lines = tuple(orjson.dumps(episode.model_dump(mode="json")) for episode in episodes)
    store, catalog = Store(root / "store"), Catalog(root / "catalog.db")
    blob = store.put_blob(gzip.compress(b"\n".join(lines), mtime=0))
    config = {"release": str(release().root), "sandbox": {"kind": "bubblewrap"}}
    catalog.start_run("first", "ci", config, {})
    catalog.record_measurement(
        "first", 1, "phase_start", "val", "h", "m", 1, 2, 2, "key", {"episodes": blob.digest}
    )
    catalog.start_run("docker", "ci", {**config, "sandbox": {"kind": "docker"}}, {})
    catalog.record_measurement(
        "docker", 1, "phase_start", "val", "h", "m", 1, 2, 2, "key", {"episodes": blob.digest}
    )
    for code in (REACT, CHANCE):
        store.put_blob(code.encode())
    ids = tuple(episode_id(orjson.loads(line)["record"]).removeprefix("sha256:") for line in lines)
    return Storage(root, tmp_path_factory.mktemp("files"), blob, ids, lines)


def rinr(storage: Storage, *words: str) -> Result:
    return CliRunner().invoke(app, ["replay", *words, "--root", str(storage.root), "--cache", str(CACHE)])


@pytest.mark.spec("HOST-05")
def test_an_identical_episode_ends_with_0_and_says_what_was_compared(storage: Storage) -> None:
    for name in (storage.ids[0][:12], f"sha256:{storage.ids[0]}", f"{storage.blob.digest}#1"):
        result = rinr(storage, name, "--tokenizer", str(TINY_MODEL))
        assert result.exit_code == 0, result.output
        assert result.output == (
            "identical: 2 model calls with 6 messages, 1 tool calls, 1 submissions, ended by first_answer\n"
        )


@pytest.mark.spec("HOST-05")
def test_an_episode_is_replayed_in_the_back_end_of_its_run(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded under bubblewrap, replayed under Docker: to a program both are the same."""
    asyncio.run(real_sandboxes("docker").close())
    opened: list[str] = []

    def watched(kind: Kind, *arguments: Any, **options: Any) -> SandboxFactory:
        factory = open_factory(kind, *arguments, **options)
        opened.append(factory.kind)
        return factory

    monkeypatch.setattr("flows.replay.open_factory", watched)
    result = rinr(storage, storage.ids[0][:12], "--run", "docker", "--tokenizer", str(TINY_MODEL))
    assert result.exit_code == 0, result.output
    assert result.output.startswith("identical: 2 model calls with 6 messages")
    assert rinr(storage, storage.ids[1][:12], "--run", "docker").exit_code == 1, (
        "a divergence is seen there, too"
    )
    assert opened == ["docker", "docker"]


@pytest.mark.spec("HOST-05")
def test_a_program_that_draws_numbers_ends_with_1_and_the_place(storage: Storage) -> None:
    result = rinr(storage, storage.ids[1][:12], "--run", "first")
    assert result.exit_code == 1
    first, recorded, replayed = result.output.splitlines()
    assert first.startswith("divergence at submission 0, byte ")
    assert recorded.startswith("  recorded: '0.")
    assert replayed.startswith("  replayed: '0.")
    assert recorded[11:] != replayed[11:]


def test_a_run_without_an_episode_lists_its_episodes(storage: Storage) -> None:
    result = rinr(storage, "--run", "first")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == [name[:12] for name in storage.ids]
    assert all("c1 phase_start" in line and line.endswith("/0  first_answer") for line in lines)


def test_a_file_is_replayed_plain_or_compressed_with_what_the_user_names(storage: Storage) -> None:
    one, many, program = (storage.folder / name for name in ("one.json", "many.jsonl.gz", "h.py"))
    one.write_bytes(orjson.dumps(orjson.loads(storage.lines[0]), option=orjson.OPT_INDENT_2))
    many.write_bytes(gzip.compress(b"\n".join(storage.lines)))
    program.write_text(REACT)
    named = ("--release", str(release().root), "--harness", str(program))
    assert rinr(storage, str(one), *named).exit_code == 0
    assert rinr(storage, f"{many}#1", *named).exit_code == 0
    empty = Storage(storage.folder / "none", storage.folder, storage.blob, storage.ids, storage.lines)
    assert rinr(empty, str(one), *named).exit_code == 0
    assert not empty.root.exists(), "looking makes no storage"


def changed(storage: Storage, **changes: Any) -> Path:
    value = orjson.loads(storage.lines[0])
    value["record"] |= changes
    path = storage.folder / "changed.json"
    path.write_bytes(orjson.dumps(value))
    return path


def test_a_tampered_file_diverges(storage: Storage) -> None:
    value = orjson.loads(storage.lines[0])["record"]
    value["submissions"][0]["text"] = "<answer>other</answer>"
    path = changed(storage, submissions=value["submissions"])
    result = rinr(storage, str(path), "--run", "first")
    assert result.exit_code == 1
    assert result.output.startswith("divergence at submission 0, byte 8\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["abcdef012345"], "no stored episode has the id abcdef012345"),
        (["no/such/file.json"], "neither a file nor an episode's id"),
        ([], "name an episode, or a run with --run"),
        (["abcdef", "--run", "other"], "no run other under"),
        (["MANY"], "holds 2 episodes: name one as"),
        (["MANY#3"], "holds 2 episodes: name one as"),
        (["NEW"], "schema version 9, this program reads 1 and 2"),
        (["OLD", "--harness", "PROGRAM"], "name its run with --run"),
        (["LOST", "--run", "first"], "no program sha256:0"),
        (["HERE", "--release", "open-genomics", "--harness", "PROGRAM"], "ran on release sha256:"),
        (["HERE", "--release", "nowhere", "--harness", "PROGRAM"], "no release 'nowhere'"),
        (["TORN"], "a damaged compressed file"),
        (["TEXT"], "not JSON"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(storage: Storage, words: list[str], message: str) -> None:
    files: dict[str, Any] = {
        "MANY": b"\n".join(storage.lines),
        "NEW": changed(storage, schema_version=9).read_bytes(),
        "OLD": changed(storage, schema_version=1, given=None).read_bytes(),
        "LOST": changed(storage, harness="sha256:" + "0" * 64).read_bytes(),
        "HERE": storage.lines[0],
        "TORN": gzip.compress(storage.lines[0])[:-20],
        "TEXT": b"hello",
        "PROGRAM": REACT.encode(),
    }
    for name, data in files.items():
        (storage.folder / name).write_bytes(data)
    named = [str(storage.folder / word) if word.partition("#")[0] in files else word for word in words]
    result = rinr(storage, *named)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert result.output.count("\n") == 1
