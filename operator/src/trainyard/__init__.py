"""Trainyard: placement, ranks, mesh and network settings of a training job as one plan; preemption as a contract."""

__version__ = "0.1.0"
