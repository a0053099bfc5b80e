"""The SkyRL backend: our episodes as SkyRL's generator, SkyRL's GRPO on Ray, FSDP and vLLM as the trainer.

Only `experiment` and `worker` import SkyRL, and only once a job has asked for it. Must not know how proposals
are made, or Prefect.
"""
