"""TensorRT-LLM (PyTorch backend): what its one-model EAGLE-3 loader does with a draft."""
