"""A Hugging Face model from its configuration, each layer sharded. With a hub at hand: AutoModelForCausalLM.from_pretrained."""

import torch
from torch.distributed.fsdp import fully_shard
from trainyard_trainer import session
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

STEPS = 1000
TOKENS = 32

device = session.join()
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).to(device)
for layer in model.model.layers:
    fully_shard(layer, mesh=session.mesh())
fully_shard(model, mesh=session.mesh())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=STEPS)

step = session.load(model, optimizer, scheduler=scheduler)
while step < STEPS and not session.should_stop(step):
    session.seed(step)
    ids = (
        torch.randint(0, 64, (4, TOKENS), device=device).cumsum(dim=1) % config.vocab_size
    )  # stands for your data of this step
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    session.report(step, loss, tokens=ids.numel())
    if session.should_save(step):
        session.save()
session.end()
