"""How fast is this network? A job of its own on the nodes in question, started by the launcher.

    command: [python3, -m, trainyard_trainer.measure, collectives, --sizes, "65536,1048576"]
    command: [python3, -m, trainyard_trainer.measure, orders, --mebibytes, "4", --orders, "20"]

`edges` says what one node sends to another, by what lies between them; `sizes` times each collective of `ways` at each size, over
gloo on the CPU and over NCCL on GPUs; `orders` says what the order of ranks is worth. Rank 0 prints lines of JSON
(trainyard.contract.measured).
"""
