"""A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Written to be read from top to bottom. Shapes in comments: B samples, T tokens, W width, H heads, K heads of keys and
values, D = W / H numbers a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trainyard.api.trainer import Shape


class Attention(nn.Module):
    """Causal self-attention. Several query heads share one head of keys and values, which keeps the cache small."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = shape.heads, shape.kv_heads, shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.heads * self.head_width, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(shape.heads * self.head_width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        # The number of heads follows from what the projections give: of a tensor group, each rank has its own heads.
        query = self.query(x).view(batch, length, -1, self.head_width).transpose(1, 2)  # B H T D
        key = self.key(x).view(batch, length, -1, self.head_width).transpose(1, 2)  # B K T D
        value = self.value(x).view(batch, length, -1, self.head_width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            rotate(query, cos, sin),
            rotate(key, cos, sin),
            value,
            is_causal=True,
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

    The unit that FSDP gathers.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Tokens (B T, integers below `vocabulary`) to logits of the next token (B T vocabulary); or a stage of that, which takes
    and gives the residual stream (B T W) where it is not the first and not the last.

    embeds: whether it begins with tokens. sequence_parts: among how many ranks the residual stream's tokens are dealt out.
    """

    def __init__(self, shape: Shape, vocabulary: int, rope_theta: float) -> None:
        super().__init__()
        self.head_width, self.rope_theta, self.tied = shape.width // shape.heads, rope_theta, shape.tie_embeddings
        self.embeds, self.sequence_parts = True, 1
        self.embedding: nn.Embedding | None = nn.Embedding(vocabulary, shape.width)
        # By name, not by position: a block keeps its name in checkpoints when another stage of a pipeline holds it.
        self.blocks = nn.ModuleDict({str(n): Block(shape) for n in range(shape.layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(shape.width, eps=1e-6)
        self.out: nn.Linear | None = nn.Linear(shape.width, vocabulary, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the two weights of a tied embedding one again; to be called whenever modules got new parameters."""
        if self.tied and self.out is not None and self.embedding is not None:
            self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.embeds:
            assert self.embedding is not None
            x = self.embedding(x)
        cos, sin = rotary(x.shape[1] * self.sequence_parts, self.head_width, self.rope_theta, x)
        for block in self.blocks.values():
            x = block(x, cos, sin)
        if self.norm is None or self.out is None:
            return x
        return self.out(self.norm(x))  # type: ignore[no-any-return]


def rotary(length: int, head_width: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine (each T D) of every position's angles (Su et al. 2021), on the device and in the type of `like`.

    Angles are computed in float32 whatever the precision: bfloat16 cannot tell position 1000 from 1001.
    """
    rates = theta ** (-torch.arange(0, head_width, 2, device=like.device, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(length, device=like.device, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of a head by its position's angle."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin
