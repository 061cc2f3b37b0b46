"""Where a lab keeps its things, and the numbers that its parts have to agree on.

All that a running lab is can be found from here by name: `down` needs no memory of what `up` did.
"""

from dataclasses import dataclass, field
from pathlib import Path

from trainyard_lab.build import cache_folder
from trainyard_lab.fabric import Topology

# Not below /run, which is memory on most machines: images and what containers write lie here.
DEFAULT_RUN = Path("/var/lib/trainyard")


@dataclass(frozen=True, slots=True)
class Lab:
    """One cluster on this machine.

    run: state of the running lab (certificates, logs, nodes' folders); `down` removes it.
    cache: what outlives the lab.
    topology: the emulated network; its prefix marks every namespace and link as this lab's.
    """

    run: Path = DEFAULT_RUN
    cache: Path = field(default_factory=cache_folder)
    topology: Topology = field(default_factory=Topology)
    cluster_domain: str = "cluster.local"

    @property
    def host_address(self) -> str:
        """The host on the fabric's core: API server and DNS are reached here."""
        return self.topology.host_address

    @property
    def nodes(self) -> Path:
        return self.run / "nodes"

    @property
    def volumes(self) -> Path:
        """The folders behind persistent volumes: every node sees the host's filesystem, so they are shared."""
        return self.run / "volumes"
