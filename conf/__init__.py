"""Hydra configuration: recipe, model, auxiliary, release, sandbox, trainer, storage."""
