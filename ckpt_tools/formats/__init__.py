"""Formats: how each framework writes a draft to disk, as data with evidence."""

from ckpt_tools.formats.detect import Detection, Match, detect, formats, read_as, read_draft

__all__ = ["Detection", "Match", "detect", "formats", "read_as", "read_draft"]
