"""torchtitan's Trainer with its Llama 3, FSDP2 over all processes.

What stands in for an accelerator, all of it before torchtitan is imported or outside of what a step computes and sends: the
device is said to be the CPU, and asked for no memory figures; a barrier names no devices; gradients are added up by a plain sum,
since gloo has no pre-multiplied one; and attention is torch's own (scaled_dot_product_attention, which torchtitan has, for image
models), since FlexAttention has no backward pass on a CPU. Samples are handed in where its data loader would give them.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.torchtitan.task import CONFIG, STEPS, Diary, batches, whole_weights


def on_a_cpu() -> None:
    """Before torchtitan is imported."""
    torch._utils._get_available_device_type = lambda: "cpu"
    device: Any = torch.cpu
    device.get_device_name = lambda *_: "cpu"
    device.get_device_properties = lambda *_: SimpleNamespace(total_memory=2**34, name="cpu")
    device.reset_peak_memory_stats = device.empty_cache = lambda *_: None
    device.memory_stats = lambda *_: {}
    barrier: Any = dist.barrier
    distributed: Any = dist
    distributed.barrier = lambda *_, **__: barrier()


def configuration() -> Any:
    """Of the same model and optimizer."""
    import torchtitan.models.llama3 as llama
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.distributed import fsdp
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    divided = fsdp.disable_fsdp_gradient_division

    def plain_sum(model: torch.nn.Module) -> None:
        divided(model)
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.set_force_sum_reduction_for_comms(True)

    fsdp.disable_fsdp_gradient_division = plain_sum
    llama.get_attention_config = lambda _: ScaledDotProductAttention.Config()

    shape, vocabulary = CONFIG.model.shape, CONFIG.model.vocabulary
    config = llama3_debugmodel()
    network = config.model_spec.model
    network.dim, network.vocab_size = shape.width, vocabulary
    network.tok_embeddings.num_embeddings = network.lm_head.out_features = vocabulary
    network.layers = llama._build_llama3_layers(
        fuse_qkv=False,
        n_layers=shape.layers,
        dim=shape.width,
        n_heads=shape.heads,
        hidden_dim=shape.hidden,
        rope=llama.ComplexRoPE.Config(
            dim=shape.width // shape.heads, max_seq_len=131072, theta=CONFIG.model.rope_theta, scaling="none"
        ),
        attn_backend="flex",
    )
    adam = CONFIG.optimizer
    config.optimizer = default_adamw(
        lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), weight_decay=adam.weight_decay
    )
    config.lr_scheduler.warmup_steps, config.lr_scheduler.min_lr_factor = 0, 1.0
    config.training.local_batch_size = CONFIG.data.micro_batch
    config.training.seq_len, config.training.steps = CONFIG.data.sequence_length, STEPS
    config.training.max_norm = adam.clip_norm
    config.training.mixed_precision_param, config.training.disable_cuda_graphs = "float32", True
    config.parallelism.pipeline_parallel_schedule = "1F1B"
    config.tokenizer = config.dataloader = SimpleNamespace(build=lambda **_: None)
    config.activation_checkpoint = None
    config.dump_folder = os.environ["TMPDIR"]
    config.validator.enable = config.checkpoint.enable = False
    return config


def main() -> None:
    diary = Diary()
    on_a_cpu()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
    from torchtitan.trainer import Trainer
    from trainyard_trainer.model.huggingface import name_of

    config = configuration()
    trainer = Trainer(config)
    first = {name_of(name): value for name, value in whole_weights().items()}
    named = Llama3StateDictAdapter(config.model_spec.model, None).from_hf(first)
    (model,) = trainer.model_parts
    set_model_state_dict(model, named, options=StateDictOptions(full_state_dict=True))

    step = trainer.train_step
    losses: list[float] = []

    def timed(data: Any) -> None:
        diary.begin()
        step(data)
        diary.end(losses[-1])

    trainer.train_step = timed
    trainer.batch_generator = lambda _: (({"input": batch.inputs}, batch.targets) for batch in batches())
    trainer.metrics_processor.should_log = lambda _: True
    trainer.metrics_processor.log = lambda _, loss, *__, **___: losses.append(loss)
    trainer.train()
    diary.tell()


if __name__ == "__main__":
    main()
