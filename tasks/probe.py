"""The first stage of a run with a chat auxiliary: is the endpoint usable? Must not know how it is asked."""

from typing import Final

from prefect import task
from prefect.cache_policies import NO_CACHE

from harness_lab.chat import AuxiliaryError
from harness_lab.probe import probe
from tasks.session import current

SCHEMA: Final = "auxiliary-probe"


@task(name="probe-auxiliary", cache_policy=NO_CACHE, persist_result=False)
async def probe_auxiliary() -> None:
    """Ask the endpoint once before any model is started; the run's configuration names the record.

    Not where no phase has an auxiliary. Not cached: a resumed run asks again, for the key or the server may
    be gone. Raises AuxiliaryError.
    """
    session = current()
    if session.chat is None or session.config.mode == "model":
        return
    found = await probe(session.chat)
    record = session.store.put_record(SCHEMA, 1, found.model_dump(mode="json"))
    session.catalog.record_artifact(record, SCHEMA, f"probe {session.run_id}")
    session.keep_exchanges(f"probe {session.run_id}")
    session.probed = record.digest
    session.progress.note(found.line())
    if not found.usable:
        raise AuxiliaryError(f"the auxiliary is not usable: {found.problem}")
