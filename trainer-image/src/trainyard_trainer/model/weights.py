"""First weights: the same numbers whatever the world size, the device and the order in which they are made.

Each parameter is drawn from a generator of its own, seeded by the run's seed and the parameter's name. A rank draws one
whole parameter at a time and keeps its part, so that the memory it takes is that of the largest parameter, not of the
model.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

DEVIATION = 0.02  # of all matrices, as in GPT-2


@torch.no_grad()
def draw(model: nn.Module, layers: int, seed: int) -> None:
    """Fill every parameter of a model whose memory exists.

    Outputs of blocks are smaller by sqrt(2 x layers) (GPT-2).
    """
    for name, parameter in model.named_parameters():
        whole = _whole(name, parameter, layers, seed)
        if isinstance(parameter, DTensor):
            part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(part.to_local())
        else:
            parameter.copy_(whole)


def _whole(name: str, parameter: Tensor, layers: int, seed: int) -> Tensor:
    if parameter.dim() == 1:  # the scale of a norm
        return torch.ones(parameter.shape, dtype=torch.float32, device=parameter.device)
    generator = torch.Generator(device="cpu")
    key = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    generator.manual_seed(int.from_bytes(key, "big") >> 1)
    deviation = DEVIATION
    if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
        deviation /= (2 * layers) ** 0.5
    whole = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, deviation, generator=generator)
    return whole.to(parameter.device)
