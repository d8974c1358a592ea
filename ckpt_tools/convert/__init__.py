"""Conversions: a pure plan over headers, then its application."""

from ckpt_tools.convert.build import Options, plan_conversion
from ckpt_tools.convert.plan import Plan, plan_json

__all__ = ["Options", "Plan", "plan_conversion", "plan_json"]
