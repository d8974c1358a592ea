"""What a head borrows from its target: embedding rows and an output head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import functional, torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Lookup(Protocol):
    """Token ids [...] -> embedding rows [..., hidden]."""

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of `ids`, in the head's dtype and on its device."""


class Table:
    """A whole embedding matrix [vocab, hidden]."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of `ids`."""
        return functional.embedding(ids, self.weight)


class Rows:
    """Rows fetched when first asked for, so that a table of gigabytes costs the rows that are used.

    Args:
        fetch: Sorted distinct ids -> rows [n, hidden], e.g. by byte ranges.
        vocab_size: Rows of the whole table.
        dtype, device: What the head computes in.
    """

    def __init__(
        self,
        fetch: Callable[[Sequence[int]], torch.Tensor],
        vocab_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self._fetch, self.vocab_size = fetch, vocab_size
        self._dtype, self._device = dtype, device
        self._known: dict[int, torch.Tensor] = {}

    @property
    def fetched(self) -> int:
        """Distinct rows read so far."""
        return len(self._known)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of `ids`.

        Raises:
            InputError: An id outside the table.
        """
        flat = ids.flatten().tolist()
        wanted = sorted(set(flat) - self._known.keys())
        if wanted:
            if wanted[0] < 0 or wanted[-1] >= self.vocab_size:
                raise InputError(
                    f"token id {wanted[0] if wanted[0] < 0 else wanted[-1]} is outside the embedding's "
                    f"{self.vocab_size} rows",
                    hint="check d2t and vocab_size: ckpt verify PATH --deep",
                )
            rows = self._fetch(wanted).to(device=self._device, dtype=self._dtype)
            self._known.update(zip(wanted, rows, strict=True))
        return torch.stack([self._known[i] for i in flat]).view(*ids.shape, -1)


@dataclass(frozen=True)
class TargetParts:
    """What was read of the target; `None` where it wasn't needed.

    Attributes:
        embed: Its embedding.
        head: Its output head [vocab, hidden], or the rows that the draft's vocabulary takes.
    """

    embed: Lookup | None = None
    head: torch.Tensor | None = None


NOTHING = TargetParts()
