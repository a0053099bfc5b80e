"""Handoff requests, claims and results: leases with fencing tokens (HAND-01, HAND-02).

A claim's token is one more than that of the claim before. A lease that has run out lets another worker claim;
from then on the older token can neither renew nor publish. A worker whose lease ran out while nobody else
claimed still holds the highest token and may publish. Must not know what a request asks for.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
from sqlmodel import Session, col, select

from catalog.connection import Database
from catalog.digest import canonical_json, digest_json, short
from catalog.errors import HandoffError
from catalog.models import Claim, HandoffRequest, HandoffResult

MAX_ATTEMPTS: Final = 5
"""Claims of one request; a request that kills its workers is not tried for ever."""


class Handoffs:
    """The handoff part of the catalog."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def publish_request(self, run_id: str, cycle: int, request: Mapping[str, Any]) -> str:
        content: dict[str, Any] = orjson.loads(canonical_json(dict(request)))
        digest = digest_json(content)
        with self._database.write() as session:
            if session.get(HandoffRequest, digest) is None:
                made = HandoffRequest(
                    digest=digest, run_id=run_id, cycle=cycle, request=content, created=self._now()
                )
                session.add(made)
        return digest

    def request(self, digest: str) -> dict[str, Any]:
        with self._database.read() as session:
            content = _request(session, digest).request
        if digest_json(content) != digest:
            raise HandoffError(f"request {short(digest)} was changed after publishing: run the phase again")
        return content

    def claim(self, worker: str, lease_seconds: float, request: str | None) -> Claim | None:
        with self._database.write() as session:
            if request is not None:
                wanted = [_request(session, request)]
            else:
                ordered = select(HandoffRequest).order_by(col(HandoffRequest.created))
                wanted = list(session.exec(ordered))
            now = self._now()
            for candidate in wanted:
                if session.get(HandoffResult, candidate.digest) is not None:
                    continue
                last = _latest(session, candidate.digest)
                # Named again by the holder of its lease: a worker that knows that its earlier self is dead.
                resumed = last is not None and request is not None and last.worker == worker
                if last is not None and (last.token >= MAX_ATTEMPTS or (last.expires > now and not resumed)):
                    continue
                made = Claim(
                    request=candidate.digest,
                    token=1 if last is None else last.token + 1,
                    worker=worker,
                    expires=now + timedelta(seconds=lease_seconds),
                    created=now,
                )
                session.add(made)
                return made
        return None

    def renew(self, request: str, token: int, lease_seconds: float) -> None:
        with self._database.write() as session:
            held = _held(session, request, token)
            held.expires = self._now() + timedelta(seconds=lease_seconds)

    def publish_result(self, request: str, token: int, result: Mapping[str, Any]) -> None:
        content: dict[str, Any] = orjson.loads(canonical_json(dict(result)))
        digest = digest_json(content)
        with self._database.write() as session:
            known = session.get(HandoffResult, request)
            if known is not None and known.digest == digest:
                return
            if known is not None:
                raise HandoffError(f"request {short(request)} has another result, by {known.worker!r}")
            held = _held(session, request, token)
            made = HandoffResult(
                request=request,
                token=token,
                worker=held.worker,
                digest=digest,
                result=content,
                created=self._now(),
            )
            session.add(made)

    def result(self, request: str) -> dict[str, Any] | None:
        with self._database.read() as session:
            known = session.get(HandoffResult, request)
            return None if known is None else known.result


def _request(session: Session, digest: str) -> HandoffRequest:
    found = session.get(HandoffRequest, digest)
    if found is None:
        raise HandoffError(f"no handoff request {digest!r} in this catalog")
    return found


def _latest(session: Session, request: str) -> Claim | None:
    claims = select(Claim).where(Claim.request == request)
    return session.exec(claims.order_by(col(Claim.token).desc())).first()


def _held(session: Session, request: str, token: int) -> Claim:
    _request(session, request)
    last = _latest(session, request)
    if last is None or last.token != token:
        newest = "none" if last is None else f"{last.token}, held by {last.worker!r}"
        raise HandoffError(
            f"token {token} of request {short(request)} is stale (the newest is {newest}): stop this worker"
        )
    return last
