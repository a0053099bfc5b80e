"""In place of flash-attn, of which there is no wheel for the image's torch: SkyRL imports it in any case.

Nothing here is called with trainer.flash_attn=false and trainer.remove_microbatch_padding=false, which the
adapter sets where no distribution `flash-attn` is installed. Whatever calls it all the same fails by name.
"""

FIX = "flash-attn is not in this image: see docs/deploy.md"
