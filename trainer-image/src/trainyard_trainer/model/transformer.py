"""A decoder-only transformer of the Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Written to be read from top to bottom. Shapes in comments: B samples, T tokens, W width, H heads, K heads of keys and
values, D = W / H numbers a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trainyard.api.trainer import ModelConfig, RopeScaling, Shape


class Attention(nn.Module):
    """Causal self-attention. Several query heads share one head of keys and values, which keeps the cache small."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = shape.heads, shape.kv_heads, shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.heads * self.head_width, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(shape.heads * self.head_width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: B 1 T T, of `within`; None: each token sees all up to itself."""
        batch, length, _ = x.shape
        # The number of heads follows from what the projections give: of a tensor group, each rank has its own heads.
        query = self.query(x).view(batch, length, -1, self.head_width).transpose(1, 2)  # B H T D
        key = self.key(x).view(batch, length, -1, self.head_width).transpose(1, 2)  # B K T D
        value = self.value(x).view(batch, length, -1, self.head_width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            rotate(query, cos, sin),
            rotate(key, cos, sin),
            value,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.kv_heads != self.heads,
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): one projection gates the other."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, each added to the residual stream after a norm of its own.

    The unit that FSDP gathers and torch.compile compiles. recomputes: whether it keeps its input alone, and computes again what
    the backward pass needs of it (Chen et al. 2016): while FSDP has its weights gathered for that anyway.
    """

    def __init__(self, shape: Shape, norm_epsilon: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=norm_epsilon)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=norm_epsilon)
        self.feed_forward = FeedForward(shape)
        self.recomputes = False

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.recomputes:
            return checkpoint(self._through, x, cos, sin, mask, use_reentrant=False, preserve_rng_state=False)
        return self._through(x, cos, sin, mask)

    def _through(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Tokens (B T, integers below `vocabulary`) to logits of the next token (B T vocabulary); or a stage of that, which takes
    and gives the residual stream (B T W) where it is not the first and not the last.

    embeds: whether it begins with tokens. sequence_parts: among how many ranks the residual stream's tokens are dealt out.
    """

    def __init__(
        self,
        shape: Shape,
        vocabulary: int,
        rope_theta: float,
        rope_scaling: RopeScaling | None = None,
        norm_epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        self.head_width, self.rope_theta, self.tied = shape.width // shape.heads, rope_theta, shape.tie_embeddings
        self.rope_scaling = rope_scaling
        self.embeds, self.sequence_parts = True, 1
        self.embedding: nn.Embedding | None = nn.Embedding(vocabulary, shape.width)
        # By name, not by position: a block keeps its name in checkpoints when another stage of a pipeline holds it.
        self.blocks = nn.ModuleDict({str(n): Block(shape, norm_epsilon) for n in range(shape.layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(shape.width, eps=norm_epsilon)
        self.out: nn.Linear | None = nn.Linear(shape.width, vocabulary, bias=False)
        self.tie()

    @classmethod
    def of(cls, config: ModelConfig) -> Transformer:
        """The network that a configuration describes."""
        return cls(config.shape, config.vocabulary, config.rope_theta, config.rope_scaling, config.norm_epsilon)

    def tie(self) -> None:
        """Make the two weights of a tied embedding one again; to be called whenever modules got new parameters."""
        if self.tied and self.out is not None and self.embedding is not None:
            self.out.weight = self.embedding.weight

    def recompute(self, wanted: bool) -> None:
        """Whether blocks keep their inputs alone for the backward pass."""
        for block in self.blocks.values():
            block.recomputes = wanted  # type: ignore[assignment]

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Compile each block for itself: they are alike, so that one compilation serves all; weights are gathered in between."""
        for block in self.blocks.values():
            block.compile(backend=backend)

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """documents: B T, a number for each token that is the same within a document and differs from the next one's; None: a
        sample is one document."""
        if self.embeds:
            assert self.embedding is not None
            x = self.embedding(x)
        positions = torch.arange(x.shape[1] * self.sequence_parts, device=x.device)
        mask = None
        if documents is not None:
            positions, mask = within(documents, _computed_in(x))
        cos, sin = rotary(positions, rates(self.head_width, self.rope_theta, self.rope_scaling, x.device), x.dtype)
        for block in self.blocks.values():
            x = block(x, cos, sin, mask)
        if self.norm is None or self.out is None:
            return x
        return self.out(self.norm(x))  # type: ignore[no-any-return]


def within(documents: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Positions of tokens in their documents (B 1 T), and what is added to the score of each token (last) for each other one
    (B 1 T T): 0 for those of its own document up to itself, which it sees, minus infinity for the rest.

    dtype: that attention computes in. Attention makes such a matrix of any other mask, at each call, and keeps it for the
    backward pass: this one is made once, and all layers keep the same.
    """
    index = torch.arange(documents.shape[1], device=documents.device)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    first = torch.where(begins, index, 0).cummax(dim=1).values
    seen = (documents[:, :, None] == documents[:, None, :]) & (index[:, None] >= index)
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -math.inf)
    return (index - first)[:, None], mask[:, None]


def _computed_in(x: Tensor) -> torch.dtype:
    """Type in which attention computes: under autocast that of the cast, whatever the residual stream has."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def rates(head_width: int, theta: float, scaling: RopeScaling | None, device: torch.device) -> Tensor:
    """Angle by which each pair of a head turns from one position to the next (D/2; Su et al. 2021), in float32 whatever the
    precision; stretched as Llama 3.1 does where that is asked for (Llama Team 2024; transformers' rope_type llama3)."""
    turns = theta ** (-torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)
    if scaling is None:
        return turns
    in_original = scaling.original_length * turns / (2 * math.pi)  # whole turns within the earlier training's sequence
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((in_original - low) / (high - low)).clamp(0.0, 1.0)
    return turns * (kept + (1 - kept) / scaling.factor)


def rotary(positions: Tensor, turns: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine (each T D, or B 1 T D) of the positions' angles.

    Angles are computed in float32 whatever the precision: bfloat16 cannot tell position 1000 from 1001.
    """
    angles = positions[..., None].to(torch.float32) * turns
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of a head by its position's angle: the pairing of Hugging Face's weights, not that of
    Meta's."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin
