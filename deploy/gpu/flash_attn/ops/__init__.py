"""As far as vLLM looks, where a package of this name is found."""
