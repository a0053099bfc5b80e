"""The name that vLLM imports where it finds a package flash_attn."""

from typing import NoReturn

from flash_attn import FIX


def apply_rotary(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError(FIX)
