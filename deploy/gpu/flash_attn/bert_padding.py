"""The two names that SkyRL's model wrapper imports."""

from typing import NoReturn

from flash_attn import FIX


def pad_input(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError(FIX)


def unpad_input(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError(FIX)
