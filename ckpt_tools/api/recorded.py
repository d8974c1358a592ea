"""What ``conversion.json`` of an earlier conversion says beside its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.model import RECORD

if TYPE_CHECKING:
    from ckpt_tools.api.subjects import Opened
    from ckpt_tools.convert.record import Recorded
    from ckpt_tools.model import Draft


def conversion_record(opened: Opened) -> Recorded | None:
    """What an earlier conversion wrote beside its output; ``None`` without one."""
    info = next((f for f in opened.checkpoint.files if f.name == RECORD), None)
    if info is None:
        return None
    from ckpt_tools.convert.record import read_record  # few folders have one, and it brings conversions along

    return read_record(opened.source.read(RECORD, 0, info.size))


def with_record(opened: Opened, draft: Draft) -> Draft:
    """The draft with what its config doesn't state and the record of its conversion does."""
    recorded = conversion_record(opened)
    if recorded is None:
        return draft
    from ckpt_tools.convert.record import with_recorded

    return with_recorded(draft, recorded)
