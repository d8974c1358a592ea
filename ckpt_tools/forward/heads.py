"""The heads themselves: EAGLE-1 and EAGLE-3, P-EAGLE, the DFlash family, MTP.

All take the same inputs. Row i of ``tokens`` is the token *after* position i, row i of ``aux`` the target's
captured states *at* position i (concatenated, low layers first): what a target that has read positions
0 … N-1 and chosen the token of position N hands to its draft. ``draft`` then proposes the tokens that follow the last row;
``rows`` does so from every row at once, with the true tokens fed in, which is what drafting computes as long
as its proposals are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ckpt_tools.errors import InputError
from ckpt_tools.forward._torch import functional, torch
from ckpt_tools.forward.layers import (
    Alone,
    Attention,
    Cache,
    Comm,
    GrowingCache,
    MlaAttention,
    Mlp,
    StaticCache,
    attend,
    causal_mask,
    rms_norm,
    share,
    take,
)
from ckpt_tools.forward.parts import NOTHING, Lookup, Table, TargetParts
from ckpt_tools.forward.refine import Refiner, refiner
from ckpt_tools.forward.spec import BLOCK_ALGORITHMS, layer_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckpt_tools.forward.spec import HeadSpec

    Observer = Callable[[str, torch.Tensor], None]


@dataclass(frozen=True)
class Drafted:
    """What a head proposes after the last row.

    Attributes:
        logits: [B, steps, draft vocab], float32.
        draft_ids: [B, steps], ids of the draft's vocabulary.
        ids: [B, steps], the same tokens in the target's vocabulary.
        hidden: [B, steps, hidden], the states that the logits came from.
    """

    logits: torch.Tensor
    draft_ids: torch.Tensor
    ids: torch.Tensor
    hidden: torch.Tensor


class Head(Protocol):
    """A runnable draft head."""

    spec: HeadSpec
    observer: Observer | None

    def draft(
        self, tokens: torch.Tensor, aux: torch.Tensor, steps: int, *, forced: torch.Tensor | None = None
    ) -> Drafted:
        """Proposes `steps` tokens after tokens [B, N] with aux [B, N, width].

        `forced` [B, steps - 1] (target ids) are fed in place of the head's own proposals.
        """

    def rows(self, tokens: torch.Tensor, aux: torch.Tensor, steps: int) -> torch.Tensor:
        """Logits [B, N, steps, draft vocab]: what follows each row, with the true tokens fed in.

        Row i, step s predicts the token of row i + s + 1 of `tokens`; where the true tokens run out (i + s ≥ N)
        the result means nothing.
        """

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Ids of the draft's vocabulary as ids of the target's."""


def shift(tokens: torch.Tensor, by: int) -> torch.Tensor:
    """tokens [B, N] moved `by` rows up, zeros behind."""
    return functional.pad(tokens[:, by:], (0, min(by, tokens.shape[1])))


class _Base:
    """Embedding, vocabulary and output head, which all heads have."""

    def __init__(
        self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], target: TargetParts, comm: Comm
    ) -> None:
        self.spec, self.comm = spec, comm
        self.observer: Observer | None = None
        self.embed: Lookup
        if spec.embedding == "own":
            self.embed = Table(take(tensors, "embed_tokens.weight"))
        elif target.embed is not None:
            self.embed = target.embed
        else:
            raise InputError(
                "the head takes its token embedding from the target, and no target was given",
                hint="add --target TARGET",
            )
        if spec.head == "embedding":
            if not isinstance(self.embed, Table):
                raise InputError(
                    "tie_word_embeddings makes the whole embedding the output head, and only rows of it were read",
                    hint="set tie_word_embeddings to false in the draft's config.json",
                )
            head = self.embed.weight
        elif spec.head == "own":
            head = take(tensors, "lm_head.weight")
        elif target.head is not None:
            head = target.head
        else:
            raise InputError(
                "the head takes its lm_head from the target, and no target was given",
                hint="add --target TARGET",
            )
        size = spec.draft_vocab_size or head.shape[0]
        # An engine that scores with a bigger head than the draft's vocabulary cuts the logits to it.
        head = head[:size]
        part = share(head.shape[0], comm, "rows of lm_head")
        self.head = head[part.start : part.stop]
        self.d2t = take(tensors, "d2t").to(head.device, torch.long) if spec.d2t else None

    def see(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Shows `x` to the observer."""
        if self.observer is not None:
            self.observer(name, x)
        return x

    def score(self, normed: torch.Tensor) -> torch.Tensor:
        """float32 logits over the draft's vocabulary."""
        return self.comm.all_gather(functional.linear(normed, self.head)).float()

    def to_target(self, draft_ids: torch.Tensor) -> torch.Tensor:
        """Ids of the draft's vocabulary as ids of the target's."""
        return draft_ids if self.d2t is None else draft_ids + self.d2t[draft_ids]

    def gather(self, logits: list[torch.Tensor], hidden: list[torch.Tensor]) -> Drafted:
        """One :class:`Drafted` from the steps' logits and states."""
        scores = torch.stack(logits, dim=1)
        chosen = scores.argmax(-1)
        return Drafted(scores, chosen, self.to_target(chosen), torch.stack(hidden, dim=1))


class _Layer:
    """A decoder layer of the EAGLE family."""

    def __init__(self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], index: int, comm: Comm) -> None:
        prefix = layer_prefix(spec.algorithm, index)
        self.spec, self.index = spec, index
        attention = MlaAttention if spec.mla is not None else Attention
        self.attention = attention(spec, tensors, prefix, index, comm)
        self.mlp = Mlp(spec, tensors, prefix, comm)
        ones = take(tensors, prefix + "mlp.gate_proj.weight").new_ones(spec.hidden_size)

        def norm(name: str) -> torch.Tensor:
            # a norm that no file fills is a norm of ones in every framework
            return tensors.get(f"{prefix}{name}.weight", ones)

        norms = ones if index in spec.lost_upper_norms else norm("input_layernorm")
        if index == 0 and spec.algorithm in ("eagle3", "peagle"):  # it reads the embedding, too
            norms = torch.stack((norms, norm("hidden_norm")))
        self.input_norms = norms
        self.post_norm = norm("post_attention_layernorm")

    def __call__(
        self,
        x: torch.Tensor,
        embeds: torch.Tensor | None,
        positions: torch.Tensor,
        cache: Cache,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """[B, T, hidden] -> [B, T, hidden]; with `embeds`, the layer reads [embedding, hidden state]."""
        spec, residual = self.spec, x
        if embeds is not None:
            # both norms in one pass: a row alone doesn't fill a device
            both = torch.stack((embeds, x), dim=-2)
            normed = functional.rms_norm(both, both.shape[-1:], eps=spec.eps) * self.input_norms
            if spec.norm_before_residual:
                residual = normed[..., 1, :]
            entering = normed.flatten(-2)
        elif spec.algorithm == "eagle" and self.index == 0:
            entering = x
        else:
            entering = rms_norm(x, self.input_norms, spec.eps)
        x = residual + self.attention(entering, positions, cache, mask)
        return x + self.mlp(rms_norm(x, self.post_norm, spec.eps))


class EagleHead(_Base):
    """EAGLE-1 and EAGLE-3: a head that feeds its own state and token back."""

    def __init__(
        self,
        spec: HeadSpec,
        tensors: Mapping[str, torch.Tensor],
        target: TargetParts = NOTHING,
        comm: Comm | None = None,
    ) -> None:
        comm = comm or Alone()
        super().__init__(spec, tensors, target, comm)
        self.first = spec.algorithm == "eagle"
        self.layers = [_Layer(spec, tensors, i, comm) for i in range(spec.num_layers)]
        self.fc = None if spec.skip_fc else take(tensors, "fc.weight")
        self.fc_bias = take(tensors, "fc.bias") if spec.fc_bias else None
        ones = self.head.new_ones(spec.num_aux * spec.target_hidden_size)
        self.input_norm = tensors.get("input_norm.weight", ones) if spec.input_norm else None
        self.fc_norms = [
            tensors.get(f"fc_norm.{j}.weight", ones[: spec.target_hidden_size])
            for j in range(spec.num_aux if spec.fc_norm else 0)
        ]
        self.norm = None if self.first else tensors.get("norm.weight", ones[:1].expand(spec.hidden_size))

    def fuse(self, aux: torch.Tensor) -> torch.Tensor:
        """Captured states [B, N, num_aux · target hidden] as draft states [B, N, hidden]."""
        spec = self.spec
        if self.first:
            return aux
        width = spec.num_aux * spec.target_hidden_size
        if aux.shape[-1] != width:
            raise InputError(
                f"fc takes {spec.num_aux} captured layers of {spec.target_hidden_size} ({width} values), "
                f"found {aux.shape[-1]}",
                hint="the states must hold the layers that the draft was trained on",
            )
        if self.input_norm is not None:
            aux = rms_norm(aux, self.input_norm, spec.eps)
        if self.fc_norms:
            chunks = aux.chunk(spec.num_aux, dim=-1)
            pairs = zip(chunks, self.fc_norms, strict=True)
            aux = torch.cat([rms_norm(c, w, spec.eps) for c, w in pairs], dim=-1)
        if self.fc is None:
            return aux
        return self.see("fc", functional.linear(aux, self.fc, self.fc_bias))

    def run(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: Cache,
        masks: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(states that go to the logits, states that are fed back), each [B, T, hidden].

        Args:
            tokens: [B, T], target ids.
            hidden: [B, T, hidden]: fused captured states, or what the step before fed back.
            positions: [B, T].
            cache: Rows before.
            masks: Per layer, bool [T, L], or `None` where every row sees all.
        """
        embeds = self.embed(tokens)
        x = hidden
        if self.first:
            assert self.fc is not None
            x = self.see("fc", functional.linear(torch.cat((embeds, x), dim=-1), self.fc, self.fc_bias))
        for i, layer in enumerate(self.layers):
            with_embeds = embeds if i == 0 and not self.first else None
            x = self.see(f"layers.{i}", layer(x, with_embeds, positions, cache, masks[i]))
        if self.norm is None:
            return x, x
        normed = self.see("norm", rms_norm(x, self.norm, self.spec.eps))
        return normed, normed if self.spec.norm_output else x

    def masks(self, queries: torch.Tensor, keys: torch.Tensor, drafted: int = 0) -> list[torch.Tensor]:
        """Per layer, bool [T, L] over row indices, for queries that stand `drafted` rows after their anchor."""
        seen = causal_mask(queries, keys)
        behind = queries.unsqueeze(1) - keys
        if self.spec.window_from == "anchor":
            behind = behind - drafted
        kinds = {w: seen if w is None else seen & (behind < w) for w in set(self.spec.windows)}
        return [kinds[window] for window in self.spec.windows]

    def draft(
        self, tokens: torch.Tensor, aux: torch.Tensor, steps: int, *, forced: torch.Tensor | None = None
    ) -> Drafted:
        """Prefill over all rows, then one row per step; see :class:`Head`."""
        batch, count = tokens.shape
        slots = torch.arange(count + steps, device=tokens.device)
        positions = slots + self.spec.position_start
        cache = StaticCache(count + steps)
        cache.slots = slots[:count]
        masks = self.masks(slots[:count], slots)
        normed, back = self.run(tokens, self.fuse(aux), positions[:count].expand(batch, -1), cache, masks)
        logits, hidden = [self.score(self.see("step.0", normed[:, -1]))], [normed[:, -1]]
        state = back[:, -1:]
        for step in range(1, steps):
            chosen = self.to_target(logits[-1].argmax(-1)) if forced is None else forced[:, step - 1]
            at = count + step - 1
            cache.slots = slots[at : at + 1]
            masks = self.masks(slots[at : at + 1], slots, step)
            normed, state = self.run(
                chosen.unsqueeze(1), state, positions[at : at + 1].expand(batch, -1), cache, masks
            )
            logits.append(self.score(self.see(f"step.{step}", normed[:, -1])))
            hidden.append(normed[:, -1])
        return self.gather(logits, hidden)

    def rows(self, tokens: torch.Tensor, aux: torch.Tensor, steps: int) -> torch.Tensor:
        """Every row as an anchor; see :class:`Head`.

        The keys of step 0 are seen causally, those of later steps only by their own row: so row i's step s
        sees what drafting from row i would.
        """
        batch, count = tokens.shape
        index = torch.arange(count, device=tokens.device)
        base = causal_mask(index, index)
        own = torch.eye(count, dtype=torch.bool, device=tokens.device)
        cache, state, out = GrowingCache(), self.fuse(aux), []
        for step in range(steps):
            # the rows after an anchor are no keys of its drafting, so causality is the anchor's own
            near = self.masks(index + step, index, step)
            masks = [torch.cat([base & m, *[own] * step], dim=1) for m in near]
            positions = (index + self.spec.position_start + step).expand(batch, -1)
            normed, state = self.run(shift(tokens, step), state, positions, cache, masks)
            out.append(self.score(normed))
        return torch.stack(out, dim=2)


class PEagleHead(EagleHead):
    """P-EAGLE: all steps in one pass; steps past the first see a mask token and a learned hidden state."""

    def __init__(
        self,
        spec: HeadSpec,
        tensors: Mapping[str, torch.Tensor],
        target: TargetParts = NOTHING,
        comm: Comm | None = None,
    ) -> None:
        super().__init__(spec, tensors, target, comm)
        self.mask_hidden = take(tensors, "mask_hidden").reshape(1, 1, -1)
        if spec.mask_token_id is None:
            raise InputError(
                "P-EAGLE needs mask_token_id, and config.json states none",
                hint="write mask_token_id into the draft's config.json",
            )
        self.mask_token = spec.mask_token_id

    def elements(
        self, tokens: torch.Tensor, aux: torch.Tensor, anchors: torch.Tensor, depths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits [B, E, draft vocab], states [B, E, hidden]) of elements (anchor row, depth), each [E].

        An element sees the depth-0 elements up to its anchor, and those of its own anchor up to its depth.
        """
        batch = tokens.shape[0]
        at = (anchors + depths).clamp(max=tokens.shape[1] - 1)
        real = depths == 0
        ids = torch.where(real, tokens[:, at], self.mask_token)
        states = torch.where(real.view(1, -1, 1), aux[:, at], self.mask_hidden.to(aux.dtype))
        q_anchor, q_depth = anchors.unsqueeze(1), depths.unsqueeze(1)
        own = (q_anchor == anchors) & (q_depth >= depths)
        before = (depths == 0) & (q_anchor >= anchors)
        masks = []
        for window in self.spec.windows:
            near = before if window is None else before & (anchors > q_anchor + q_depth - window)
            masks.append(near | own)
        positions = (anchors + depths).expand(batch, -1)
        normed, _ = self.run(ids, self.fuse(states), positions, GrowingCache(), masks)
        return self.score(normed), normed

    def draft(
        self,
        tokens: torch.Tensor,
        aux: torch.Tensor,
        steps: int,
        *,
        forced: torch.Tensor | None = None,  # noqa: ARG002  # the protocol's
    ) -> Drafted:
        """One pass; `forced` changes nothing, since no step sees another's token. See :class:`Head`."""
        count = tokens.shape[1]
        first = torch.arange(count, device=tokens.device)
        anchors = torch.cat((first, first[-1:].expand(steps - 1)))
        depths = torch.cat((torch.zeros_like(first), torch.arange(1, steps, device=tokens.device)))
        logits, hidden = self.elements(tokens, aux, anchors, depths)
        return self.gather(list(logits[:, count - 1 :].unbind(1)), list(hidden[:, count - 1 :].unbind(1)))

    def rows(self, tokens: torch.Tensor, aux: torch.Tensor, steps: int) -> torch.Tensor:
        """Every row as an anchor; see :class:`Head`."""
        count = tokens.shape[1]
        first = torch.arange(count, device=tokens.device)
        anchors = first.repeat(steps)
        depths = torch.arange(steps, device=tokens.device).repeat_interleave(count)
        logits, _ = self.elements(tokens, aux, anchors, depths)
        return logits.view(logits.shape[0], steps, count, -1).transpose(1, 2)


class _BlockLayer:
    """A decoder layer of the DFlash family; DFlash2 convolves each sublayer's input and output."""

    def __init__(self, spec: HeadSpec, tensors: Mapping[str, torch.Tensor], index: int, comm: Comm) -> None:
        prefix = layer_prefix(spec.algorithm, index)
        self.spec, self.index = spec, index
        self.attention = Attention(spec, tensors, prefix, index, comm)
        self.mlp = Mlp(spec, tensors, prefix, comm)
        ones = take(tensors, prefix + "mlp.gate_proj.weight").new_ones(spec.hidden_size)
        self.input_norm = tensors.get(prefix + "input_layernorm.weight", ones)
        self.post_norm = tensors.get(prefix + "post_attention_layernorm.weight", ones)
        self.convs = (
            {
                part: (
                    take(tensors, f"{prefix}{part}_conv.base_kernel"),
                    take(tensors, f"{prefix}{part}_conv.kernel_projection.weight"),
                )
                for part in ("attention", "mlp")
            }
            if spec.conv_group
            else {}
        )

    def _conv(self, x: torch.Tensor, base: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Causal convolution over a block's slots; x [B, n, slots, hidden], delta [B, n, slots, taps, groups]."""
        assert self.spec.conv_group is not None
        wide = base + delta.repeat_interleave(self.spec.conv_group, dim=-1)
        out = torch.zeros_like(x)
        for tap in range(base.shape[0]):
            moved = functional.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :]
            out = out + moved * wide[..., tap, :]
        return out

    def _wrapped(
        self, part: str, x: torch.Tensor, inner: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        if part not in self.convs:
            return inner(x)
        base, projection = self.convs[part]
        delta = functional.linear(x, projection)
        delta = delta.view(*delta.shape[:-1], 2, base.shape[1], -1)
        entering = self._conv(x, base[0], delta[..., 0, :, :])
        return self._conv(inner(entering), base[1], delta[..., 1, :, :])

    def __call__(
        self,
        z: torch.Tensor,
        context: torch.Tensor,
        positions: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Blocks z [B, n, slots, hidden] over context [B, T, hidden]; positions of context and of blocks."""
        spec, shape = self.spec, z.shape
        here, there = positions

        def attention(y: torch.Tensor) -> torch.Tensor:
            flat = y.flatten(1, 2)
            q, k, v = self.attention.project(flat, there)
            _, k_context, v_context = self.attention.project(context, here)
            keys, values = torch.cat((k_context, k), dim=2), torch.cat((v_context, v), dim=2)
            mixed = attend(q, keys, values, mask, spec.head_dim**-0.5)
            return self.attention.finish(mixed).view(shape)

        z = z + self._wrapped("attention", rms_norm(z, self.input_norm, spec.eps), attention)
        return z + self._wrapped("mlp", rms_norm(z, self.post_norm, spec.eps), self.mlp)


class BlockHead(_Base):
    """DFlash, DFlash2, DSpark, XPress: a block of mask tokens after an anchor, drafted in one pass.

    The anchor of row i is its token, at position i + 1; the block sees the captured states of rows 0 … i.
    """

    def __init__(
        self,
        spec: HeadSpec,
        tensors: Mapping[str, torch.Tensor],
        target: TargetParts = NOTHING,
        comm: Comm | None = None,
    ) -> None:
        comm = comm or Alone()
        super().__init__(spec, tensors, target, comm)
        if spec.block_size is None or spec.mask_token_id is None:
            raise InputError(
                f"{spec.algorithm} needs block_size and mask_token_id, found {spec.block_size} and "
                f"{spec.mask_token_id}",
                hint="write them into the draft's config.json",
            )
        self.block, self.mask_token = spec.block_size, spec.mask_token_id
        self.fc = take(tensors, "fc.weight")
        self.fc_bias = tensors.get("fc.bias") if spec.fc_bias else None
        ones = self.fc.new_ones(spec.hidden_size)
        self.hidden_norm = tensors.get("hidden_norm.weight", ones)
        self.norm = tensors.get("norm.weight", ones)
        self.layers = [_BlockLayer(spec, tensors, i, comm) for i in range(spec.num_layers)]
        self.refiner: Refiner = refiner(spec, tensors)
        # slot 0 stands on the anchor itself unless drafting starts there
        self.skipped = 0 if spec.sample_from_anchor else 1

    @property
    def max_steps(self) -> int:
        """Tokens that one block proposes."""
        return self.block - self.skipped

    def context(self, aux: torch.Tensor) -> torch.Tensor:
        """Captured states [B, T, num_aux · target hidden] as context [B, T, hidden]."""
        fc = self.see("fc", functional.linear(aux, self.fc, self.fc_bias))
        return self.see("hidden_norm", rms_norm(fc, self.hidden_norm, self.spec.eps))

    def _mask(self, anchors: torch.Tensor, count: int, layer: int) -> torch.Tensor:
        """bool [n · slots, T + n · slots] for anchors at those positions."""
        window = self.spec.windows[layer]
        slot = torch.arange(self.block, device=anchors.device).repeat(anchors.numel())
        at = anchors.repeat_interleave(self.block)
        block = torch.arange(anchors.numel(), device=anchors.device).repeat_interleave(self.block)
        keys = torch.arange(count, device=anchors.device)
        seen = keys < at.unsqueeze(1)
        own = block.unsqueeze(1) == block
        if window is not None:
            reach = at if self.spec.window_from == "anchor" else at + slot + 1
            seen = seen & (keys >= (reach - window).unsqueeze(1))
        if self.spec.causal[layer]:
            own = own & (slot.unsqueeze(1) >= slot)
        return torch.cat((seen, own), dim=1)

    def blocks(
        self, anchor_tokens: torch.Tensor, anchors: torch.Tensor, aux: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits [B, n, slots, draft vocab], states [B, n, slots, hidden]) of the backbone.

        Args:
            anchor_tokens: [B, n], target ids.
            anchors: [n], positions; a block sees the captured states before its anchor.
            aux: [B, T, width], states of positions 0 … T-1.
        """
        batch, count = anchor_tokens.shape
        ids = anchor_tokens.new_full((batch, count, self.block), self.mask_token)
        ids[..., 0] = anchor_tokens
        context = self.context(aux)
        here = torch.arange(aux.shape[1], device=aux.device).expand(batch, -1)
        slots = torch.arange(self.block, device=aux.device)
        there = (anchors.unsqueeze(1) + slots).flatten().expand(batch, -1)
        z = self.embed(ids)
        kinds: dict[tuple[Any, bool], torch.Tensor] = {}
        for i, layer in enumerate(self.layers):
            key = self.spec.windows[i], self.spec.causal[i]
            if key not in kinds:
                kinds[key] = self._mask(anchors, aux.shape[1], i)
            z = self.see(f"layers.{i}", layer(z, context, (here, there), kinds[key]))
        hidden = self.see("norm", rms_norm(z, self.norm, self.spec.eps))
        return self.score(hidden), hidden

    def _steps(self, steps: int) -> None:
        if steps > self.max_steps:
            raise InputError(
                f"a block of {self.block} proposes {self.max_steps} tokens, asked for {steps}",
                hint=f"use --steps {self.max_steps} or fewer",
            )

    def draft(
        self, tokens: torch.Tensor, aux: torch.Tensor, steps: int, *, forced: torch.Tensor | None = None
    ) -> Drafted:
        """One block after the last row, then the refining head slot by slot; see :class:`Head`."""
        self._steps(steps)
        count = tokens.shape[1]
        anchor = torch.tensor([count], device=tokens.device)
        logits, hidden = self.blocks(tokens[:, -1:], anchor, aux)
        before = tokens[:, -2] if count > 1 else tokens[:, -1]
        scores = self.refiner.free(
            logits[:, 0], hidden[:, 0], tokens[:, -1], before, self.to_target, self.skipped, forced
        )
        kept = slice(self.skipped, self.skipped + steps)
        return self.gather(list(scores[:, kept].unbind(1)), list(hidden[:, 0, kept].unbind(1)))

    def rows(self, tokens: torch.Tensor, aux: torch.Tensor, steps: int) -> torch.Tensor:
        """Every row as an anchor; see :class:`Head`."""
        self._steps(steps)
        batch, count = tokens.shape
        anchors = torch.arange(1, count + 1, device=tokens.device)
        logits, hidden = self.blocks(tokens, anchors, aux)
        true = torch.stack([shift(tokens, s) for s in range(self.block)], dim=2)
        before = torch.cat((tokens[:, :1], tokens[:, :-1]), dim=1)
        flat = batch * count
        scores = self.refiner.forced(
            logits.reshape(flat, self.block, -1),
            hidden.reshape(flat, self.block, -1),
            true.reshape(flat, self.block),
            before.reshape(flat),
            self.skipped,
        )
        return scores.view(batch, count, self.block, -1)[:, :, self.skipped : self.skipped + steps]


class MtpHead(_Base):
    """A bundled next-token layer run recursively, as speculators trains it.

    Every step runs all rows again over the step before's states; positions don't advance with the steps.
    """

    def __init__(
        self,
        spec: HeadSpec,
        tensors: Mapping[str, torch.Tensor],
        target: TargetParts = NOTHING,
        comm: Comm | None = None,
    ) -> None:
        comm = comm or Alone()
        super().__init__(spec, tensors, target, comm)
        prefix = layer_prefix("mtp", 0)
        self.layer = _Layer(spec, tensors, 0, comm)
        self.token_norm = take(tensors, prefix + "token_layernorm.weight")
        self.hidden_norm = take(tensors, prefix + "hidden_layernorm.weight")
        self.final_norm = take(tensors, prefix + "final_layernorm.weight")
        self.project = take(tensors, prefix + "input_proj.weight")

    def step(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """States [B, T, hidden] of one step over all rows."""
        eps = self.spec.eps
        embeds = rms_norm(self.embed(tokens), self.token_norm, eps)
        joined = torch.cat((embeds, rms_norm(hidden, self.hidden_norm, eps)), dim=-1)
        z = self.see("input_proj", functional.linear(joined, self.project))
        index = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layer(z, None, index.expand(tokens.shape[0], -1), GrowingCache(), causal_mask(index, index))
        return self.see("final_layernorm", rms_norm(x, self.final_norm, eps))

    def draft(
        self, tokens: torch.Tensor, aux: torch.Tensor, steps: int, *, forced: torch.Tensor | None = None
    ) -> Drafted:
        """Recursive drafting over all rows; see :class:`Head`."""
        count, state = tokens.shape[1], aux
        logits: list[torch.Tensor] = []
        hidden: list[torch.Tensor] = []
        for step in range(steps):
            if step:
                chosen = self.to_target(logits[-1].argmax(-1)) if forced is None else forced[:, step - 1]
                tokens = torch.cat((tokens, chosen.unsqueeze(1)), dim=1)
            state = self.step(tokens[:, -count:], state)
            logits.append(self.score(self.see(f"step.{step}", state[:, -1])))
            hidden.append(state[:, -1])
        return self.gather(logits, hidden)

    def rows(self, tokens: torch.Tensor, aux: torch.Tensor, steps: int) -> torch.Tensor:
        """Every row as an anchor; see :class:`Head`."""
        state, out = aux, []
        for step in range(steps):
            state = self.step(shift(tokens, step), state)
            out.append(self.score(state))
        return torch.stack(out, dim=2)


def build(
    spec: HeadSpec,
    tensors: Mapping[str, torch.Tensor],
    target: TargetParts = NOTHING,
    comm: Comm | None = None,
) -> Head:
    """The head that `spec` describes, over canonical `tensors` of one dtype and device.

    Raises:
        InputError: A tensor that the head can't do without is missing.
    """
    if spec.algorithm in BLOCK_ALGORITHMS:
        return BlockHead(spec, tensors, target, comm)
    if spec.algorithm == "peagle":
        return PEagleHead(spec, tensors, target, comm)
    if spec.algorithm == "mtp":
        return MtpHead(spec, tensors, target, comm)
    return EagleHead(spec, tensors, target, comm)
