"""Engine versions: comparison (PEP 440) and the contract that answers for a version without its own."""

from __future__ import annotations

from functools import lru_cache

from packaging.version import InvalidVersion, Version

from ckpt_tools.errors import UsageError


@lru_cache(maxsize=512)
def parse(version: str) -> Version:
    """*version* for comparing: 0.5.10.post1 > 0.5.10 > 0.5.9. A local part (``+cu128``) is dropped.

    Raises:
        UsageError: It is no version.
    """
    try:
        parsed = Version(version)
    except InvalidVersion as error:
        raise UsageError(
            f"{version!r} is no version", "write it as in a package's release, e.g. 0.5.23 or 0.5.10.post1"
        ) from error
    return Version(parsed.public)


@lru_cache(maxsize=512)
def nearest(known: tuple[str, ...], version: str) -> str:
    """The newest of *known* (ascending) that isn't newer than *version*; the oldest when all are newer."""
    wanted = parse(version)
    older = [candidate for candidate in known if parse(candidate) <= wanted]
    return older[-1] if older else known[0]
