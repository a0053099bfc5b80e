"""How often a stage lost its inference server: once is made good, twice ends the run (HOST-10)."""

from typing import Final

from broker.errors import ServiceRefused

_ALLOWED: Final = 1


class ServerLosses:
    """Servers are numbered in the order of their starts; several stages may share one."""

    def __init__(self) -> None:
        self._server = 0
        self._dead: set[int] = set()
        self._served: dict[str, set[int]] = {}

    def lost(self) -> None:
        """The present server is dead or hangs; what is served from now on is the next one."""
        self._dead.add(self._server)
        self._server += 1

    def serves(self, stage: str) -> None:
        """The present server answers for a stage."""
        self._served.setdefault(stage, set()).add(self._server)

    def of(self, stage: str) -> int:
        """How many servers a stage has lost."""
        return len(self._served.get(stage, set()) & self._dead)

    def refuse_third(self, stage: str, kind: str) -> None:
        """Raise `ServiceRefused` if a stage has lost its server twice."""
        if (lost := self.of(stage)) > _ALLOWED:
            raise ServiceRefused(
                f"model.inference={kind}: the server was lost {lost} times in one stage, and restarted once: "
                "look into the run's folder inference/, then resume with the same run_id"
            )
