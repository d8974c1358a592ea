"""vLLM as an engine: what its loader does with a draft, per release."""
