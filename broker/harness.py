"""A harness as data: a program text and its digest."""

from functools import cached_property

from pydantic import BaseModel, ConfigDict

from catalog.digest import digest_bytes


class Harness(BaseModel):
    """A program `run(task, api)`. Never executed on the host."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str

    @cached_property
    def digest(self) -> str:
        return digest_bytes(self.code.encode())
