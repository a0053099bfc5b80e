"""The SkyRL backend: our episodes as SkyRL's generator, SkyRL's GRPO on Ray, FSDP and vLLM as the trainer.

Only this package imports SkyRL, and only once a job has asked for it: `settings`, `mapping`, `model`,
`rollout`, `generator`, `prompts` and `found` need none. Must not know how proposals are made, or Prefect.
"""
