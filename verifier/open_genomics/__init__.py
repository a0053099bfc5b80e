"""Builder of the bundled release `open-genomics`. Only the builder knows this release; nothing imports it."""
