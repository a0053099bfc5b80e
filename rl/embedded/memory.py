"""Give memory that was freed back to the system.

glibc keeps freed blocks of odd sizes, and every update and rollout has other sizes: without this the training
process of a 135 M model grew from 5 to 8 GiB over eight updates. Must not know what the memory held.
"""

import ctypes
import gc
from typing import Final

ALLOCATOR: Final = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(8 << 20)}
"""Environment of a training process: one arena, and large blocks mapped on their own."""


def return_memory() -> None:
    """Collect garbage and trim the heap; does nothing where the C library has no trim."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
