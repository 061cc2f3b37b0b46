"""What the pod's network is, found before the workers start: facts from /sys and /proc, each with its source and what follows.

Pure but for `surroundings`, which asks the machine: `tree` reads devices out of a folder that looks like a machine's root,
`lists` reads NCCL's lists, `interface` finds the way to rank 0, `adapters` chooses RDMA adapters, `gids` their addresses,
`limits` looks at memory and drivers, `resolve` puts it together. Also here: `signs`, what lines of NCCL and torch mean, and
`counters`, which show congestion that nothing else shows.
"""
