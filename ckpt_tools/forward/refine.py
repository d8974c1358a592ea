"""The small heads that correct a block's logits: DSpark's Markov heads, XPress' refiner, DFlash2's selector.

A refiner is run in two ways: ``forced``, with the true tokens of the block (training, acceptance), and ``free``, each
slot seeing what was chosen before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import functional, torch
from ckpt_tools.forward.layers import take

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckpt_tools.forward.spec import HeadSpec

    ToTarget = Callable[[torch.Tensor], torch.Tensor]


class Refiner(Protocol):
    """What corrects the logits of blocks."""

    def forced(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        true: torch.Tensor,
        before: torch.Tensor,
        skipped: int,
    ) -> torch.Tensor:
        """Corrected logits [n, slots, draft vocab].

        Args:
            logits: Of the backbone, [n, slots, draft vocab].
            hidden: [n, slots, hidden].
            true: [n, slots], the true tokens of the block's positions; slot 0 is the anchor.
            before: [n], the token before the anchor.
            skipped: 1 when slot 0 stands on the anchor and proposes nothing, else 0.
        """

    def free(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        anchor: torch.Tensor,
        before: torch.Tensor,
        to_target: ToTarget,
        skipped: int,
        given: torch.Tensor | None,
    ) -> torch.Tensor:
        """The same while drafting: slots see the choices before them, or `given` [n, steps - 1] in their place."""


class Plain:
    """No correction: DFlash."""

    def forced(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,  # noqa: ARG002
        true: torch.Tensor,  # noqa: ARG002
        before: torch.Tensor,  # noqa: ARG002
        skipped: int,  # noqa: ARG002
    ) -> torch.Tensor:
        """`logits` themselves."""
        return logits

    def free(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,  # noqa: ARG002
        anchor: torch.Tensor,  # noqa: ARG002
        before: torch.Tensor,  # noqa: ARG002
        to_target: ToTarget,  # noqa: ARG002
        skipped: int,  # noqa: ARG002
        given: torch.Tensor | None,  # noqa: ARG002
    ) -> torch.Tensor:
        """`logits` themselves."""
        return logits


def _previous(true: torch.Tensor, skipped: int) -> torch.Tensor:
    """Per slot, the token before the one that it predicts."""
    return torch.cat((true[:, :1], true[:, :-1]), dim=1) if skipped else true


class _SlotBySlot:
    """A correction of slot k that depends on the token before it."""

    def correct(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        previous: torch.Tensor,
        state: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(corrected logits [n, draft vocab], state) of one slot; `previous` [n] in target ids."""
        raise NotImplementedError

    def forced(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        true: torch.Tensor,
        before: torch.Tensor,  # noqa: ARG002
        skipped: int,
    ) -> torch.Tensor:
        """Slot by slot with the true tokens."""
        previous, state, out = _previous(true, skipped), None, []
        for slot in range(logits.shape[1]):
            scores, state = self.correct(logits[:, slot], hidden[:, slot], previous[:, slot], state)
            out.append(scores)
        return torch.stack(out, dim=1)

    def free(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        anchor: torch.Tensor,
        before: torch.Tensor,  # noqa: ARG002
        to_target: ToTarget,
        skipped: int,
        given: torch.Tensor | None,
    ) -> torch.Tensor:
        """Slot by slot with what was chosen."""
        previous, state, out = anchor, None, []
        for slot in range(logits.shape[1]):
            scores, state = self.correct(logits[:, slot], hidden[:, slot], previous, state)
            out.append(scores)
            step = slot - skipped
            if step < 0:
                continue
            told = given is not None and step < given.shape[1]
            previous = given[:, step] if told and given is not None else to_target(scores.argmax(-1))
        return torch.stack(out, dim=1)


class Markov(_SlotBySlot):
    """DSpark: a low-rank bias from the previous token; vanilla, gated by the hidden state, or recurrent."""

    def __init__(self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor]) -> None:
        self.kind = spec.markov
        self.first = take(tensors, "markov_head.markov_w1.weight")
        self.second = take(tensors, "markov_head.markov_w2.weight")
        name = {"vanilla": None, "gated": "gate_proj", "rnn": "joint_proj"}
        if self.kind not in name:
            raise InputError(
                f"markov_head_type {self.kind!r} is unknown",
                hint="vanilla, gated and rnn are known",
            )
        part = name[self.kind]
        self.weight = take(tensors, f"markov_head.{part}.weight") if part else None
        self.bias = take(tensors, f"markov_head.{part}.bias") if part else None

    def correct(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        previous: torch.Tensor,
        state: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See :class:`_SlotBySlot`."""
        token = functional.embedding(previous, self.first)
        if self.weight is None:
            mixed = token
        elif self.kind == "gated":
            gate = functional.linear(torch.cat((hidden, token), dim=-1), self.weight, self.bias)
            mixed = gate.sigmoid() * token
        else:
            state = torch.zeros_like(token) if state is None else state
            joint = functional.linear(torch.cat((state, token, hidden), dim=-1), self.weight, self.bias)
            gate, candidate, out = joint.chunk(3, dim=-1)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
            mixed = out.tanh()
        return logits + functional.linear(mixed, self.second).float(), state


class Selector(_SlotBySlot):
    """DFlash2: among the likeliest ids of a slot, a bilinear score of (previous token, hidden state, id).

    Ids outside the likeliest keep -inf: they can't be chosen.
    """

    def __init__(self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor]) -> None:
        self.top_k = spec.selector_top_k or 16
        self.predecessor = take(tensors, "candidate_selector.predecessor_codebook")
        self.successor = take(tensors, "candidate_selector.successor_codebook")
        self.project = take(tensors, "candidate_selector.hidden_projection.weight")

    def correct(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        previous: torch.Tensor,
        state: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See :class:`_SlotBySlot`."""
        top = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1)
        context = self.predecessor[previous] * functional.linear(hidden, self.project)
        edge = (context.unsqueeze(-2) * self.successor[top.indices]).sum(-1).float()
        out = torch.full_like(logits, -torch.inf)
        return out.scatter(-1, top.indices, top.values + edge), state


class XPress:
    """XPress: a causal mixer over the block's slots, repeated while drafting (Jacobi passes)."""

    def __init__(self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor]) -> None:
        def of(name: str) -> torch.Tensor:
            return take(tensors, f"refiner_head.{name}.weight")

        self.token, self.down_h, self.down_g = of("token_embed"), of("down_h"), of("down_g")
        self.enter, self.gate, self.up, self.down = (
            of("in_proj"),
            of("mlp_gate"),
            of("mlp_up"),
            of("mlp_down"),
        )
        self.readout = of("readout")
        self.mix = take(tensors, "refiner_head.mix_l").tril()
        self.passes = spec.jacobi_passes or 1

    def bias(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Logit bias [n, slots, draft vocab]; previous [n, slots] in target ids."""
        whole = hidden.mean(dim=1, keepdim=True).expand_as(hidden)
        token = functional.embedding(previous, self.token)
        parts = (functional.linear(hidden, self.down_h), functional.linear(whole, self.down_g), token)
        x = functional.linear(torch.cat(parts, dim=-1), self.enter)
        x = x + torch.einsum("ckj,njc->nkc", self.mix, x)
        inner = functional.silu(functional.linear(x, self.gate)) * functional.linear(x, self.up)
        return functional.linear(x + functional.linear(inner, self.down), self.readout).float()

    def forced(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        true: torch.Tensor,
        before: torch.Tensor,
        skipped: int,
    ) -> torch.Tensor:
        """One pass with the true tokens."""
        previous = torch.cat((before.unsqueeze(1), true[:, :-1]), dim=1) if skipped else true
        return logits + self.bias(hidden, previous)

    def free(
        self,
        logits: torch.Tensor,
        hidden: torch.Tensor,
        anchor: torch.Tensor,
        before: torch.Tensor,
        to_target: ToTarget,
        skipped: int,
        given: torch.Tensor | None,
    ) -> torch.Tensor:
        """Passes over the whole block, each seeing the choices of the one before."""
        scores = logits
        for _ in range(self.passes):
            chosen = to_target(scores.argmax(-1))
            if skipped:
                chosen = torch.cat((anchor.unsqueeze(1), chosen[:, 1:]), dim=1)
            if given is not None:
                kept = given[:, : chosen.shape[1] - skipped]
                chosen = torch.cat((chosen[:, :skipped], kept, chosen[:, skipped + kept.shape[1] :]), dim=1)
            first = before if skipped else anchor
            previous = torch.cat((first.unsqueeze(1), chosen[:, :-1]), dim=1)
            scores = logits + self.bias(hidden, previous)
        return scores


def refiner(spec: HeadSpec, tensors: Mapping[str, torch.Tensor]) -> Refiner:
    """The refiner of a block head."""
    if spec.markov is not None:
        return Markov(spec, tensors)
    if "candidate_selector.predecessor_codebook" in tensors and spec.algorithm == "dflash2":
        return Selector(spec, tensors)
    if spec.algorithm == "xpress":
        return XPress(spec, tensors)
    return Plain()


def confidence(
    spec: HeadSpec, tensors: Mapping[str, torch.Tensor], hidden: torch.Tensor, previous: torch.Tensor
) -> torch.Tensor:
    """DSpark's acceptance logit per slot [n, slots]; reads the previous token's code when it is wide enough."""
    weight, bias = take(tensors, "confidence_head.proj.weight"), take(tensors, "confidence_head.proj.bias")
    features = hidden
    if weight.shape[1] > spec.hidden_size:
        codes = functional.embedding(previous, take(tensors, "markov_head.markov_w1.weight"))
        features = torch.cat((hidden, codes), dim=-1)
    return functional.linear(features, weight, bias).squeeze(-1)
