"""Whether the GPUs that SkyRL used are free again, before the export is scored on one of them.

Ray ends its workers by a signal and does not wait for them: their memory is theirs for a moment longer. On a
Ray that was joined it may be a neighbour's. Must not know jobs.
"""

from broker.errors import ModelUnavailable
from broker.gpu_memory import FREE_SECONDS, MemoryWatch


def still_held(watch: MemoryWatch, seconds: float = FREE_SECONDS) -> str | None:
    """Wait until the watched devices hold no more than before. After `seconds`: one line of who holds it.

    No error: what was trained must not be lost to a neighbour, and scoring may still find room.
    """
    try:
        watch.prove_free("SkyRL", seconds)
    except ModelUnavailable as error:
        return str(error)
    return None
