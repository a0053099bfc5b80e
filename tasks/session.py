"""What the stages of one run share: store, catalog, release, sandboxes, and the one inference service.

A session is opened once around a run; stages reach it through `current()`, so that their own parameters
stay small JSON references. It owns every process the run starts and ends them, whatever happens.
"""

import asyncio
import fcntl
import os
import platform
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from broker.broker import Broker, host_identity
from broker.engine.default_model import DEFAULT_MODEL, find_model
from broker.errors import ModelUnavailable
from broker.guidance import host_guidance
from broker.harness import Harness
from broker.inference import InferenceService, InferenceSpec, chat_model_folder
from broker.judge import open_judge
from broker.limiter import Limiter
from broker.outside import expect_checkers, runtime_for, verifier_identity
from broker.sandbox.factory import open_factory
from broker.sandbox.pool import pooled
from broker.service_log import ServiceLog
from broker.template import ChatTemplate
from catalog.database import Catalog, RunStatus
from catalog.digest import digest_json, short
from catalog.errors import StoreError
from catalog.store import Ref, Store
from harness_lab.auxiliary import Auxiliary, open_auxiliary
from harness_lab.chat import ChatEndpoint
from harness_lab.exchange import SCHEMA as EXCHANGES
from harness_lab.exchange import VERSION as EXCHANGES_VERSION
from harness_lab.exchange import Fallback, Ledger, artifact
from harness_lab.improver.base import Improver
from harness_lab.improver.llm import ChatImprover
from harness_lab.improver.rules import RuleImprover
from harness_lab.improver.skills import SkillsImprover
from report.progress import RunProgress
from tasks.auxiliary import open_chat
from tasks.config import AuxiliaryConfig, RunConfig, config_identity, new_run_id
from tasks.first_harness import first_harness
from tasks.servers import ServerLosses
from tasks.stage import running
from verifier.grade import Grader
from verifier.inventory import Inventory
from verifier.release import find

_current: ContextVar["Session"] = ContextVar("rinr_session")


class RunInUse(Exception):
    """Another process is running the same run id."""


def current() -> "Session":
    """The session of the run that this stage belongs to."""
    return _current.get()


def machine_facts() -> dict[str, str | int]:
    """What a reader of the numbers wants to know of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**30),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def open_improver(config: AuxiliaryConfig, chat: ChatEndpoint | None) -> Improver:
    """The configured improver: rules, or a chat model for whole programs or for skills (PROP-04, PROP-09)."""
    if config.improver == "rules":
        return RuleImprover()
    assert chat is not None, "the configuration has an endpoint wherever it has such an improver"
    kind = SkillsImprover if config.improver == "skills" else ChatImprover
    return kind(chat, config.context_tokens)


class Session:
    """The open resources of one run. Made by `open_session`."""

    def __init__(self, config: RunConfig, run_id: str, progress: RunProgress, *, owner: bool) -> None:
        self.config = config
        self.owner = owner
        self.run_id = run_id
        self.progress = progress
        self.root = Path(config.storage.root).resolve()
        self.cache = Path(config.storage.cache).resolve()
        self.folder = self.root / run_id
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(self.root / "store")
        self.catalog = Catalog(self.root / "catalog.db")
        self.release = find(config.release)
        self.grader = Grader(self.release)
        self.grader.launch()
        expect_checkers(self.release, judge=config.judge.kind != "none")
        self.judge = open_judge(config.judge) if "judge" in self.release.checkers else None
        self.verifier_identity = verifier_identity(self.release, config.judge.identity())
        self.shell = "script" in self.release.checkers
        self.runtime = runtime_for(
            self.shell, packages=self.cache / "sandbox-packages", cache=self.cache / "runtime"
        )
        sandboxes = open_factory(config.sandbox.kind, self.runtime, cache=self.cache)
        self.sandboxes = pooled(sandboxes, config.sandbox.pool)
        self.guidance = host_guidance(self.release.inventory())
        self.host_identity = host_identity(
            self.sandboxes, config.budgets, self.guidance, self.runtime.libraries
        )
        self.exchanges = Ledger()
        self.chat = open_chat(config.auxiliary, self.exchanges)
        """The second model's endpoint, one for all its roles; None where rules do everything."""
        self.probed: str | None = None
        """Digest of what the endpoint's probe found."""
        self.auxiliary: Auxiliary = open_auxiliary(self.chat, self.exchanges)
        self.improver: Improver = open_improver(config.auxiliary, self.chat)
        self.limiter = Limiter(config.concurrency)
        self.claims: dict[str, int] = {}
        """Tokens of the handoff requests that this process holds."""
        self.losses = ServerLosses()
        self._services = ServiceLog(self.folder / "inference")
        self._service: InferenceService | None = None
        self._broker: Broker | None = None
        self._served: str | None = None
        self._switch = asyncio.Lock()
        # It has read the references meanwhile; one that does not fit its task is told before anything runs.
        self.grader.start()

    def import_model(self) -> Ref:
        """The configured base model as a tree in the store; of a chat model, what stands for it."""
        model = self.config.model
        name = model.name
        if model.inference == "chat":
            assert model.base_url is not None
            assert model.served_name is not None
            tokenizer = find_model(name, self.cache) if name == DEFAULT_MODEL else Path(name).expanduser()
            with chat_model_folder(tokenizer, model.base_url, model.served_name) as folder:
                return self.store.put_tree(folder)
        if model.inference == "endpoint":
            folder = Path(name).expanduser()
            if not (folder / "tokenizer.json").is_file():
                raise ModelUnavailable(
                    f"model.name={name} is no folder with the served model's tokenizer.json"
                )
        else:
            folder = find_model(name, self.cache)
        return self.store.put_tree(folder)

    def begin(self, model: Ref) -> None:
        """Pin the run's identities; a resumed run must have the same ones (CONT-04)."""
        plain = {
            **self.config.model_dump(mode="json"),
            "run_id": self.run_id,
            "no_training": self.release.no_training,
            "machine": machine_facts(),
            "auxiliary_probe": self.probed,
        }
        identities = {"model": model.digest, "config": config_identity(self.config), **self.identities()}
        if self.config.harness is not None:
            # A file may change between two days; the run keeps its program.
            identities["harness"] = self.first_harness().digest
        self.catalog.start_run(self.run_id, self.config.recipe_name, plain, identities)

    def status(self, status: RunStatus, detail: str = "") -> None:
        """How the run ended, once it has begun; only its owner says so."""
        if self.owner and self.catalog.run(self.run_id) is not None:
            self.catalog.finish_run(self.run_id, status, detail)

    def identities(self) -> dict[str, str]:
        """What every measurement of the run rests on, besides model and program."""
        return {
            "release": self.release.digest,
            "verifier": self.verifier_identity,
            "host": self.host_identity,
            "auxiliary": digest_json([self.auxiliary.identity, self.improver.identity]),
        }

    def first_harness(self) -> Harness:
        """The program that the run begins with. Raises `UnknownHarness`."""
        return first_harness(self.config, self.store, self.catalog)

    def put_harness(self, harness: Harness) -> Ref:
        return self.store.put_blob(harness.code.encode())

    def harness(self, ref: Ref) -> Harness:
        return Harness(code=self.store.get_blob(ref.digest).decode())

    def model_folder(self, model: Ref) -> Path:
        """An ordinary folder with the model's files, hard-linked out of the store once."""
        folder = self.root / "models" / short(model.digest, 16)
        if not folder.exists():
            try:
                self.store.checkout_tree(model.digest, folder)
            except StoreError:
                # Another run on this storage may have put the same model there in the meantime.
                if not folder.exists():
                    raise
        return folder

    async def broker(self, model: Ref) -> Broker:
        """A broker whose inference service answers with this model; the service is switched if need be."""
        async with self._switch:
            # A dead or frozen server is replaced here, when the stage that lost it is tried again.
            usable = self._service is not None and await self._service.usable()
            if self._service is not None and not usable:
                self._lose(self._service)
            self.losses.refuse_third(running.get(), self.config.model.inference)
            if self._broker is None or self._served != model.digest or not usable:
                await self._release()
                self.progress.note(f"starting inference for model {short(model.digest)}")
                folder = self.model_folder(model)
                self._service = InferenceService(self._inference_spec(), folder, self._services)
                self._broker = Broker(
                    model=await self._service.start(),
                    template=ChatTemplate.load(folder, counting=self.config.model.inference == "chat"),
                    sandboxes=self.sandboxes,
                    grader=self.grader,
                    release=self.release,
                    budgets=self.config.budgets,
                    guidance=self.guidance,
                    limiter=self.limiter,
                    libraries=self.runtime.libraries,
                    judge=self.judge,
                )
                self._served = model.digest
            self.losses.serves(running.get())
            return self._broker

    def _lose(self, service: InferenceService) -> None:
        """Our server is dead or hangs; told and counted once."""
        why = "hangs" if service.alive else "is dead"
        self.losses.lost()
        self._services.write("lost", why=why, stage=running.get())
        self.progress.note(f"the inference server {why}: it is started again, once a stage")

    def inventory(self) -> Inventory:
        """What the release and the execution environment offer, public (PROP-03)."""
        return self.release.inventory(self.runtime.libraries)

    def keep_exchanges(self, made_by: str, fallbacks: Iterable[Fallback] = ()) -> str:
        """Store what was said to and by the auxiliary since the last time. Returns the record's digest."""
        body = artifact(
            self.auxiliary.identity,
            self.exchanges.take(),
            fallbacks,
            self.chat.manner if self.chat is not None else None,
        )
        record = self.store.put_record(EXCHANGES, EXCHANGES_VERSION, body)
        self.catalog.record_artifact(record, EXCHANGES, made_by)
        return record.digest

    async def release_services(self) -> None:
        """End the inference service, so that training has the machine to itself (HAND-04)."""
        async with self._switch:
            await self._release()

    async def close(self) -> None:
        """End everything that this session started."""
        try:
            await self.release_services()
        except ModelUnavailable as error:
            # The rest must still be closed, and how the run ended must still be told.
            self.progress.note(f"at the end: {error}")
        if self.exchanges.mark():
            self.keep_exchanges(f"unfinished stage of {self.run_id}")
        if self.chat is not None:
            self.progress.note(f"auxiliary {self.chat.client.spending()}")
        await self.improver.close()
        await self.auxiliary.close()
        if self.judge is not None:
            self.progress.note(f"judge {self.judge.spending()}")
            await self.judge.close()
        await self.sandboxes.close()
        self.grader.close()

    async def _release(self) -> None:
        service, self._service, self._broker, self._served = self._service, None, None, None
        if service is not None:
            if (line := service.spending()) is not None:
                self.progress.note(f"task model {line}")
            await service.stop()

    def _inference_spec(self) -> InferenceSpec:
        model = self.config.model
        return InferenceSpec(
            kind=model.inference,
            device=model.device,
            threads=model.threads,
            max_batch=model.max_batch,
            context_tokens=self.config.budgets.context_tokens,
            base_url=model.base_url,
            served_name=model.served_name,
            command=model.command,
            vllm=model.vllm,
            seed=self.config.seed,
            settings=model.endpoint,
            api_key_variable=model.api_key_variable,
            dialect=model.dialect,
            length_parameter=model.length_parameter,
        )


@contextmanager
def _locked(folder: Path, run_id: str) -> Generator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as handle:
        _take(handle, run_id)
        yield


def _take(handle: IO[str], run_id: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        raise RunInUse(
            f"run {run_id} is running in process {handle.read().strip()}: wait, or choose another run_id"
        ) from None
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()


@asynccontextmanager
async def open_session(
    config: RunConfig, progress: RunProgress, *, owner: bool = True
) -> AsyncGenerator[Session]:
    """Open a session for a run, make it the current one, and end everything it started at the end.

    The owner of a run holds its lock and writes its status; a worker that serves a request of the run does
    neither. Raises RunInUse when another process owns the run.
    """
    run_id = config.run_id or new_run_id(config)
    with ExitStack() as stack:
        if owner:
            stack.enter_context(_locked(Path(config.storage.root).resolve() / run_id, run_id))
        session = Session(config, run_id, progress, owner=owner)
        token = _current.set(session)
        try:
            yield session
            session.status("completed")
        except (asyncio.CancelledError, KeyboardInterrupt):
            session.status("cancelled")
            raise
        except BaseException as error:
            session.status("failed", " ".join(f"{type(error).__name__}: {error}".split())[:500])
            raise
        finally:
            _current.reset(token)
            await session.close()
