"""One Prefect task per stage: cache key in, digest out. Must not know any algorithm."""
