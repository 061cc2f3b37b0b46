"""The built-in trainer beside torchtitan 0.3.0: the same weights, samples and optimizer, on two processes of a CPU.

    pip install --no-deps --target FOLDER torchtitan==0.3.0 torchdata==0.11.0 torch-checkpointing==0.1.1 spmd_types==0.2.3 \
        tyro typeguard docstring-parser einops tensorboard wandb datasets==4.7.0 multiprocess==0.70.18 \
        huggingface-hub==1.33.0 httpx httpcore anyio h11 sniffio
    python -m benchmarks.torchtitan --packages FOLDER [--json]

torchtitan is made for accelerators and trains on no CPU as it is; `theirs.py` says what is put in its place, and that none of it
is in what a step computes or sends. Its packages stand in a folder of their own since it asks for older versions of some.
"""
