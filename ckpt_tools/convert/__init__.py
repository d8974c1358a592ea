"""Conversions: a pure plan over headers, then its application."""

from ckpt_tools.convert.build import plan_conversion
from ckpt_tools.convert.options import Options, Readers
from ckpt_tools.convert.plan import Plan, plan_json
from ckpt_tools.convert.repairs import REPAIRS

__all__ = ["REPAIRS", "Options", "Plan", "Readers", "plan_conversion", "plan_json"]
