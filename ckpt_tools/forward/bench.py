"""How fast a draft step is, and how fast it could be: the time to read its weights once."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckpt_tools.forward._torch import torch
from ckpt_tools.forward.heads import EagleHead
from ckpt_tools.forward.layers import StaticCache
from ckpt_tools.forward.parts import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckpt_tools.forward.heads import Head


@dataclass(frozen=True)
class StepTime:
    """Times of one recursive step at batch 1, in milliseconds.

    Attributes:
        step_ms: Median of the repeats.
        floor_ms: `bytes_read` over `bandwidth`.
        bytes_read: Bytes of the weights that a step reads.
        bandwidth: Measured read bandwidth, bytes per second.
        graph: Whether the step ran as a CUDA graph.
    """

    step_ms: float
    floor_ms: float
    bytes_read: int
    bandwidth: float
    graph: bool

    @property
    def over_floor(self) -> float:
        """How many times the floor a step takes."""
        return self.step_ms / self.floor_ms


def _weights(part: object, seen: set[int]) -> Iterator[torch.Tensor]:
    """All tensors that hang on a head's parts."""
    if isinstance(part, torch.Tensor):
        if id(part) not in seen:
            seen.add(id(part))
            yield part
    elif isinstance(part, (list, tuple)):
        for item in part:
            yield from _weights(item, seen)
    elif type(part).__module__.startswith("ckpt_tools.forward.") and hasattr(part, "__dict__"):
        if id(part) in seen:
            return
        seen.add(id(part))
        for name, item in vars(part).items():
            if name not in ("embed", "spec", "comm", "rope"):
                yield from _weights(item, seen)


def step_bytes(head: Head) -> int:
    """Bytes of the weights that one recursive step reads: all but the embedding and, for EAGLE-3, fc and its norms.

    Of the embedding a step reads one row, and fc runs only before the first.
    """
    skipped = set()
    if isinstance(head, EagleHead) and not head.first:
        once = (head.fc, head.fc_bias, head.input_norm, *head.fc_norms)
        skipped = {id(t) for t in once if t is not None}
    return sum(t.numel() * t.element_size() for t in _weights(head, set()) if id(t) not in skipped)


def _now(device: torch.device) -> float:
    if device.type == "cuda":  # pragma: no cover - needs a GPU
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measured_bandwidth(device: torch.device, size: int | None = None) -> float:
    """Read bandwidth in bytes per second: the fastest of several sums over a buffer too big for the caches."""
    gpu = device.type == "cuda"
    count = (size or (2 << 30 if gpu else 64 << 20)) // 4
    buffer = torch.ones(count, device=device)
    best = 0.0
    for reduce in (torch.sum, torch.amax):
        for _ in range(10 if gpu else 3):
            start = _now(device)
            reduce(buffer)
            best = max(best, buffer.numel() * 4 / (_now(device) - start))
    return best


class EagleStep:
    """One recursive step of an EAGLE head over static buffers, the same work every call.

    Args:
        head: The head.
        batch: Sequences.
        capacity: Rows of the cache; the step stands at its last one.
    """

    def __init__(self, head: EagleHead, batch: int, capacity: int) -> None:
        device, dtype = head.head.device, head.head.dtype
        self.head = head
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.state = torch.zeros(batch, 1, head.spec.hidden_size, device=device, dtype=dtype)
        self.state.normal_()
        self.cache = StaticCache(capacity)
        rows = torch.arange(capacity, device=device)
        self.cache.slots = rows[-1:]
        # masks and positions hang on the row alone: a server has them ready before the step
        masks = head.masks(self.cache.slots, rows, 1)
        self.masks = [None if bool(mask.all()) else mask for mask in masks]
        self.positions = (self.cache.slots + head.spec.position_start).expand(batch, -1)
        self.logits = torch.zeros(0)
        self.next = self.token

    def __call__(self) -> None:
        """Runs the step; the chosen token is `next`."""
        normed, _ = self.head.run(self.token, self.state, self.positions, self.cache, self.masks)
        self.logits = self.head.score(normed[:, -1])
        self.next = self.head.to_target(self.logits.argmax(-1))


def _graph(run: Callable[[], None]) -> Callable[[], None]:  # pragma: no cover - needs a GPU
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _times(run: Callable[[], object], repeats: int, device: torch.device, together: int) -> list[float]:
    """Seconds per run; `together` runs are queued and timed at once."""
    for _ in range(3):
        run()
    out = []
    for _ in range(repeats):
        start = _now(device)
        for _ in range(together):
            run()
        out.append((_now(device) - start) / together)
    return out


@torch.no_grad()
def time_step(
    head: Head, *, repeats: int = 20, capacity: int = 64, bandwidth: float | None = None
) -> StepTime:
    """Median time of one recursive step at batch 1, beside its floor.

    On a GPU an EAGLE step runs as a CUDA graph, as the engines run it. A head that drafts a block, or MTP's,
    is timed over a whole draft of two rows.
    """
    weight: torch.Tensor = head.head  # type: ignore[attr-defined]  # every head has one
    device = weight.device
    graph = device.type == "cuda" and type(head) is EagleHead
    if type(head) is EagleHead:
        # one row stands for the table: a step reads one, and rows fetched on demand can't be part of a graph
        kept, row = head.embed, torch.zeros(1, head.spec.hidden_size, device=device, dtype=weight.dtype)
        head.embed = Table(row)
        try:
            run: Callable[[], None] = EagleStep(head, 1, capacity)
            if graph:  # pragma: no cover - needs a GPU
                run = _graph(run)
            times = _times(run, repeats, device, 10 if graph else 1)
        finally:
            head.embed = kept
    else:
        tokens = torch.zeros(1, 2, dtype=torch.long, device=device)
        width = head.spec.num_aux * head.spec.target_hidden_size
        aux = torch.randn(1, 2, width, device=device, dtype=weight.dtype)
        times = _times(lambda: head.draft(tokens, aux, 1), repeats, device, 1)
    read = step_bytes(head)
    found = measured_bandwidth(device) if bandwidth is None else bandwidth
    return StepTime(statistics.median(times) * 1e3, read / found * 1e3, read, found, graph)
