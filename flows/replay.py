"""`rinr replay`: find a stored episode and what it needs, run its program again, say where it differs.

An episode is named by the digest of its record or by the first digits of it, by a file, or by its place in
one (`episodes.jsonl#3`, the same for a stored blob of episodes). Without a name the episodes of a run are
listed. Nothing is written, and no model is called.
"""

import asyncio
import contextlib
import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson
from rich.console import Console

from broker.budgets import Budgets
from broker.guidance import host_guidance
from broker.harness import Harness
from broker.record import EpisodeRecord, Given, RecordError, episode_id, read_episode
from broker.replay import Divergence, Replayed, ReplayError, compare_tokens, replay
from broker.sandbox.factory import open_factory
from broker.sandbox.runtime import build_runtime
from broker.template import ChatTemplate
from catalog.database import Catalog
from catalog.digest import is_digest, short
from catalog.errors import StoreError
from catalog.models import Run
from catalog.store import Store
from verifier.release import Release, ReleaseError, find

_GZIP: Final = b"\x1f\x8b"
_NAME: Final = re.compile(r"(?:sha256:)?([0-9a-f]{6,64})")
ID_DIGITS: Final = 12


@dataclass(frozen=True)
class Stored:
    """An episode where it was found."""

    data: bytes
    """JSON of the record, or of the graded episode."""
    run: Run | None
    role: str

    @property
    def id(self) -> str:
        """Empty for what is no record at all."""
        try:
            value = orjson.loads(self.data)
        except orjson.JSONDecodeError:
            return ""
        if not isinstance(value, dict):
            return ""
        record = cast("dict[str, Any]", value)
        return episode_id(record.get("record", record))


@dataclass(frozen=True)
class Sources:
    """Where to look, and what the user named."""

    root: Path
    cache: Path
    run_id: str | None = None
    release: str | None = None
    harness: Path | None = None
    tokenizer: Path | None = None

    def storage(self) -> tuple[Catalog, Store] | None:
        """None where there is none; looking must not make it."""
        if not (self.root / "catalog.db").exists():
            return None
        return Catalog(self.root / "catalog.db"), Store(self.root / "store")

    def runs(self) -> list[Run]:
        """The named run, or all. ReplayError if there is none of that name."""
        storage = self.storage()
        runs = storage[0].runs() if storage else []
        if self.run_id is None:
            return runs
        found = [run for run in runs if run.run_id == self.run_id]
        if not found:
            known = ", ".join(run.run_id for run in runs[-5:]) or "none"
            raise ReplayError(f"no run {self.run_id} under {self.root}; the latest are: {known}")
        return found


def lines_of(data: bytes) -> list[bytes]:
    """The JSON texts of a file: one, or one a line, compressed or not."""
    try:
        text = gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError) as error:
        raise ReplayError(f"a damaged compressed file: {error}") from error
    lines = [line for line in text.split(b"\n") if line.strip()]
    # A record that somebody has indented is one text.
    return [text] if len(lines) > 1 and lines[0].strip() == b"{" else lines


def stored_episodes(sources: Sources) -> Iterator[Stored]:
    """All episodes of the named run, or of all runs, in the order of their stages."""
    storage = sources.storage()
    if storage is None:
        return
    catalog, store = storage
    for run in sources.runs():
        for row in catalog.measurements(run.run_id):
            if digest := row.detail.get("episodes"):
                for line in _blob(store, digest):
                    yield Stored(line, run, f"c{row.cycle} {row.kind}")
        for stage in catalog.stages(run.run_id):
            if stage.name == "collect":
                for item in _interactions(store, stage.output):
                    yield Stored(orjson.dumps(item["record"]), run, f"c{stage.cycle} interaction")


def _blob(store: Store, digest: str) -> list[bytes]:
    try:
        return lines_of(store.get_blob(digest))
    except StoreError:
        return []  # what is lost cannot be listed


def _interactions(store: Store, digest: str) -> list[dict[str, Any]]:
    try:
        return cast("list[dict[str, Any]]", store.get_record(digest, "interactions")["interactions"])
    except StoreError:
        return []


def find_episode(name: str, sources: Sources) -> Stored:
    """The episode of that name. Raises ReplayError with one line."""
    where, _, number = name.rpartition("#") if "#" in name else (name, "", "")
    run = sources.runs()[0] if sources.run_id else None
    if Path(where).is_file():
        return Stored(_pick(lines_of(Path(where).read_bytes()), where, number), run, where)
    match = _NAME.fullmatch(where)
    if match is None:
        raise ReplayError(
            f"{where} is neither a file nor an episode's id (6 to 64 hex digits): "
            "`rinr replay --run RUN` lists a run's episodes"
        )
    storage = sources.storage()
    if storage is None:
        raise ReplayError(
            f"no runs under {sources.root}: name the storage folder with --root, or give a file"
        )
    digest = f"sha256:{match[1]}"
    if number and is_digest(digest) and storage[1].has(digest):
        return Stored(_pick(_blob(storage[1], digest), where, number), run, where)
    found = {item.id: item for item in stored_episodes(sources) if item.id.startswith(digest)}
    if len(found) != 1:
        what = "several episodes have" if found else "no stored episode has"
        raise ReplayError(
            f"{what} the id {short(digest, 64)}: `rinr replay --run RUN` lists a run's episodes"
        )
    return next(iter(found.values()))


def _pick(lines: list[bytes], where: str, number: str) -> bytes:
    if not number and len(lines) == 1:
        return lines[0]
    if not number.isdecimal() or not 1 <= int(number) <= len(lines):
        raise ReplayError(f"{where} holds {len(lines)} episodes: name one as {where}#1 to #{len(lines)}")
    return lines[int(number) - 1]


def _release(record: EpisodeRecord, stored: Stored, sources: Sources) -> Release:
    """The named release, or the one of the run, or any that a run here used and that made this record."""
    if sources.release is not None:
        return _find(sources.release)
    if stored.run is not None:
        return _find(str(stored.run.config["release"]))
    storage = sources.storage()
    names = {str(run.config.get("release")) for run in storage[0].runs()} if storage else set[str]()
    wanted = record.given.release if record.given else None
    for name in sorted(names):
        with contextlib.suppress(ReplayError):
            if (release := _find(name)).digest == wanted:
                return release
    return _find("open-genomics")


def _find(name: str) -> Release:
    try:
        return find(name)
    except ReleaseError as error:
        raise ReplayError(f"{error} (--release)") from error


def _program(record: EpisodeRecord, sources: Sources) -> Harness:
    if sources.harness is not None:
        return Harness(code=sources.harness.read_text(encoding="utf-8"))
    storage = sources.storage()
    try:
        if storage is not None:
            return Harness(code=storage[1].get_blob(record.harness).decode())
    except StoreError:
        pass
    raise ReplayError(f"no program {record.harness} in the store under {sources.root}: give it as --harness")


def _given(
    record: EpisodeRecord, stored: Stored, release: Release, libraries: tuple[str, ...]
) -> tuple[Given, str]:
    """What the program was given, and a remark on how that is known."""
    if record.given is not None:
        return record.given, ""
    budgets = stored.run.config.get("budgets") if stored.run else None
    if budgets is None:
        raise ReplayError("a record of version 1 does not hold its budgets: name its run with --run")
    turns = int(budgets.get("user_turns", 1)) if record.mode == "interaction" else 0
    given = Given(
        release=release.digest,
        budgets=Budgets.model_validate(budgets),
        guidance=host_guidance(release.inventory()),
        libraries=libraries,
        user_turns=turns,
        task="",
    )
    return given, "version 1: budgets from the run, guidance and libraries as they are now"


async def _replay(stored: Stored, sources: Sources) -> tuple[Replayed, EpisodeRecord, str]:
    try:
        record = read_episode(stored.data)
    except RecordError as error:
        raise ReplayError(str(error)) from error
    release, harness = _release(record, stored, sources), _program(record, sources)
    runtime = build_runtime(packages=sources.cache / "sandbox-packages", cache=sources.cache / "runtime")
    given, remark = _given(record, stored, release, runtime.libraries)
    kind: Any = stored.run.config.get("sandbox", {}).get("kind", "auto") if stored.run else "auto"
    sandboxes = open_factory(kind, runtime, cache=sources.cache)
    try:
        result = await replay(record, harness, release, given, sandboxes)
    finally:
        await sandboxes.close()
    if result.divergence is None and sources.tokenizer is not None:
        template = ChatTemplate.load(sources.tokenizer, counting=not record.token_exact)
        found = compare_tokens(record, template)
        result = result.model_copy(update={"divergence": found})
    return result, record, remark


def replay_episode(name: str, sources: Sources, console: Console) -> bool:
    """Replay and print; whether it was identical. Raises ReplayError or SandboxLost."""
    result, record, remark = asyncio.run(_replay(find_episode(name, sources), sources))
    if result.divergence is not None:
        _print_divergence(result.divergence, console)
        return False
    calls, tools, answers = len(record.model_calls), len(record.tool_calls), len(record.submissions)
    remarks = [remark] if remark else []
    if result.not_compared:
        remarks.append(f"{result.not_compared} messages are recorded only as they were cut")
    console.print(
        f"identical: {calls} model calls with {result.messages} messages, {tools} tool calls, "
        f"{answers} submissions, ended by {record.stop_reason}" + "".join(f"; {text}" for text in remarks),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return True


def _print_divergence(found: Divergence, console: Console) -> None:
    place = "" if found.byte is None else f", byte {found.byte}"
    for line in (
        f"divergence at {found.where}{place}",
        f"  recorded: {found.recorded!r}",
        f"  replayed: {found.replayed!r}",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def list_episodes(sources: Sources, console: Console) -> None:
    """One line an episode: id, boundary, task, repetition, how it ended."""
    if sources.run_id is None:
        raise ReplayError("name an episode, or a run with --run to list its episodes")
    for stored in stored_episodes(sources):
        try:
            record = read_episode(stored.data)
        except RecordError as error:
            console.print(f"{short(stored.id, ID_DIGITS)}  {error}", markup=False, soft_wrap=True)
            continue
        console.print(
            f"{short(stored.id, ID_DIGITS)}  {stored.role:<24} {record.task_id}/{record.repetition}  "
            f"{record.stop_reason}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
