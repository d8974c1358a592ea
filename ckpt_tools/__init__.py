"""Convert and validate speculative-decoding draft checkpoints."""

__version__ = "0.1.0"
