"""What the planner reaches, beside what other schedulers do: speed in `benchmarks.planner`, quality in `benchmarks.placement`.

Both print figures with the bars that they must hold and end with 1 where one does not. Clusters are generated from a seed, so
that a run can be repeated anywhere; the one real topology is read from a folder that is given.
"""
