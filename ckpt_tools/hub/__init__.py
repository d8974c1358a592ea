"""The Hub: checkpoints read by ranges (:mod:`.source`), drafts pushed (:mod:`.push` plans, :mod:`.upload` applies).

Only here is huggingface_hub imported, and only when something is asked of the Hub.
"""
