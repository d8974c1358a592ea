"""Torch reference heads: what a framework computes with a draft's weights. Numbers out, no findings."""
