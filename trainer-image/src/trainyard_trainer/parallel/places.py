"""Where the ranks are in the network: which domains they share, and so which level a group's messages cross."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh
from trainyard.contract.plan import Plan
from trainyard.planner.nested import Path, level_crossed, nested

from trainyard_trainer.parallel.mesh import REPLICATE, size


@dataclass(frozen=True, slots=True)
class Places:
    """paths: by rank, the domains around it from the broadest, and its node. levels: their names."""

    paths: tuple[Path, ...]
    levels: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan | None, ranks: int, local_ranks: int) -> Places:
        """As the plan says; without one, nothing but which ranks share a node is known."""
        if plan is not None:
            return cls(plan.places, plan.levels)
        return cls(tuple((f"node {rank // local_ranks}",) for rank in range(ranks)))

    def nested(self, mesh: DeviceMesh) -> tuple[int, ...]:
        """The groups in which replicas sum where they do so by levels, the narrowest first; (): there are no replicas."""
        replicas = size(mesh, REPLICATE)
        if replicas < 2:
            return ()
        names = mesh.mesh_dim_names or ()
        return nested(self.paths, replicas, mesh.mesh.stride(names.index(REPLICATE)))

    def crossed(self, ranks: Iterable[int]) -> str:
        """The broadest level at which some ranks are in different domains."""
        return level_crossed([self.paths[rank] for rank in ranks], self.levels)
