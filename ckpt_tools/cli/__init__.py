"""The command line: each command parses, calls one function of the API, renders and exits."""

from __future__ import annotations

from ckpt_tools.cli.root import main

__all__ = ["main"]
