"""Checks: one small function per code, found by looking."""

from ckpt_tools.checks.base import Check, Context, Hit, check, checks, finding

__all__ = ["Check", "Context", "Hit", "check", "checks", "finding"]
