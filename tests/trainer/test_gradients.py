"""The gradient of a gang is that of one process, whatever the mesh, the precision and the way the samples divide."""

import pytest
import torch
import torch.nn.functional as F
from support.processes import run
from trainyard.api.trainer import PRESETS
from trainyard.contract.plan import Axis
from trainyard_trainer.data.batches import IGNORED, Batches, samples
from trainyard_trainer.data.corpus import VOCABULARY, read
from trainyard_trainer.data.order import Order
from trainyard_trainer.model import weights
from trainyard_trainer.model.transformer import Transformer
from trainyard_trainer.parallel.gradients import local_parts, norm_squared
from trainyard_trainer.parallel.mesh import build, copies
from trainyard_trainer.parallel.rendezvous import Place, meet
from trainyard_trainer.parallel.shard import shard, sync_gradients

SHAPE = PRESETS["tiny"]
BATCH, LENGTH, MICRO = 7, 16, 2


def network(dtype, on_meta=False):
    with torch.device("meta" if on_meta else "cpu"):
        return Transformer(SHAPE, VOCABULARY, 10000.0).to(dtype)


def batches(rank, ranks):
    text = read([__file__])
    order = Order(samples(text, LENGTH), BATCH, 3, text.digest)
    return Batches(text, order, LENGTH, MICRO, rank, ranks)


def backward(model, mine):
    steps = list(mine.step(1))
    for n, (inputs, targets) in enumerate(steps, start=1):
        if hasattr(model, "set_requires_gradient_sync"):
            sync_gradients(model, n == len(steps))
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        (loss / mine.global_tokens).backward()


def of_a_gang(rank, ranks, axes, dtype):
    import os

    meet(Place.of(os.environ, rank, ranks), torch.device("cpu"), 60.0, lambda: False)
    mesh = build(axes, ranks, "cpu")
    model = network(dtype, on_meta=True)
    shard(model, mesh)
    model.to_empty(device="cpu")
    weights.draw(model, SHAPE.layers, seed=5)
    backward(model, batches(rank, ranks))
    squared = torch.tensor(norm_squared(local_parts(model.parameters()), copies(mesh)), dtype=torch.float64)
    torch.distributed.all_reduce(squared)
    return {name: p.grad.full_tensor().numpy() for name, p in model.named_parameters()}, float(squared)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
@pytest.mark.parametrize(
    ("ranks", "axes"),
    [
        (1, ()),
        (2, ()),
        (2, (Axis("replicate", 2), Axis("shard", 1))),
        (3, ()),
        (4, (Axis("replicate", 2), Axis("shard", 2))),
    ],
    ids=["1", "2", "2x1", "3", "2x2"],
)
def test_gradients_equal_those_of_one_process(tmp_path, ranks, axes, dtype, bound):
    alone = network(dtype)
    weights.draw(alone, SHAPE.layers, seed=5)
    ended = run(lambda rank: of_a_gang(rank, ranks, axes, dtype), ranks, tmp_path / "gang")
    assert [end.code for end in ended] == [0] * ranks, ended[0].output
    backward(alone, batches(0, 1))
    for gradients, squared in (end.result for end in ended):
        for name, parameter in alone.named_parameters():
            error = torch.linalg.norm(torch.from_numpy(gradients[name]) - parameter.grad)
            assert error / torch.linalg.norm(parameter.grad) < bound, name
        whole = sum(float(p.grad.double().square().sum()) for p in alone.parameters())
        assert squared == pytest.approx(whole, rel=max(bound, 1e-9))
