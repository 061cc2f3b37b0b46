"""A folder that looks like the root of a machine: /sys, /proc and /dev of a pod with GPUs, adapters and interfaces."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from trainyard_trainer.launch.network.resolve import Part, Surroundings

PART = Part(where="pod train-1 on node-1", nodes=2, processes=8, rank0="train-0.train")
GIB = 2**30


class Machine:
    """Built call by call; `around` is what the resolver gets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.around = Surroundings(
            root=root,
            addresses={},
            address_of=lambda name: "10.0.0.1",
            source_of=lambda address: None,
            shm_bytes=32 * GIB,
        )
        self.interface("lo", "127.0.0.1", mtu=65536, kind="772", flags="0x9")
        self.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "")

    def write(self, path: str, content: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")

    def but(self, **changes) -> "Machine":
        self.around = replace(self.around, **changes)
        return self

    def interface(self, name, *addresses, mtu=1500, kind="1", flags="0x1003") -> "Machine":
        for file, content in (("mtu", str(mtu)), ("type", kind), ("flags", flags)):
            self.write(f"sys/class/net/{name}/{file}", content)
        return self.but(addresses={**self.around.addresses, name: addresses})

    def routes(self, **interface_of) -> "Machine":
        """Packets to 10.0.0.1, with underscores for dots, leave from the given address; `default` is for all others."""
        known = {address.strip("_").replace("_", "."): source for address, source in interface_of.items()}
        return self.but(source_of=lambda address: known.get(address, known.get("default")))

    def gpu(self, minor, bus="0000:1b:00.0", root="pci0000:15", bridges=("0000:15:01.0",), numa=0, given=True):
        self._pci(root, bridges, bus, numa)
        self.write(f"sys/devices/{'/'.join((root, *bridges, bus))}/vendor", "0x10de")
        self.write(f"sys/devices/{'/'.join((root, *bridges, bus))}/class", "0x030200")
        if given:
            self.write(f"proc/driver/nvidia/gpus/{bus}/information", f"Model: NVIDIA H200\nDevice Minor: \t {minor}")
            self.write(f"dev/nvidia{minor}", "")
        return self

    def amd_gpu(self, minor, bus="0000:1b:00.0", root="pci0000:15", bridges=("0000:15:01.0",), numa=0, given=True):
        """minor: of its render node, from 128 on."""
        device = self._pci(root, bridges, bus, numa)
        self.write(f"{device}/vendor", "0x1002")
        self.write(f"{device}/class", "0x120000")
        link = self.root / f"sys/class/drm/renderD{minor}"
        link.mkdir(parents=True)
        (link / "device").symlink_to(self.root / device)
        self.write("dev/kfd", "")
        if given:
            self.write(f"dev/dri/renderD{minor}", "")
        return self

    def hca(
        self,
        name,
        link_layer="InfiniBand",
        rate=400,
        state="4: ACTIVE",
        physical="5: LinkUp",
        gids=(),
        bus=None,
        root="pci0000:15",
        bridges=("0000:15:01.0",),
        numa=0,
        opens=True,
        netdev=None,
        mtu=9000,
    ):
        """gids: (row, address, kind, interface)."""
        number = sum(1 for _ in (self.root / "sys/class/infiniband").glob("*"))
        device = self._pci(root, bridges, bus or f"0000:{0x80 + number:x}:00.0", numa)
        folder = f"sys/class/infiniband/{name}"
        for file, content in (
            ("state", state),
            ("phys_state", physical),
            ("rate", f"{rate} Gb/sec (4X NDR)"),
            ("link_layer", link_layer),
        ):
            self.write(f"{folder}/ports/1/{file}", content)
        (self.root / folder / "device").symlink_to(self.root / device)
        if opens is not None:
            self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
            if opens:
                self.write(f"dev/infiniband/uverbs{number}", "")
        if netdev:
            self.write(f"{device}/net/{netdev}/ifindex", "1")
            self.interface(netdev, mtu=mtu)
        for row in range(max([index for index, *_ in gids], default=-1) + 2):
            known = {index: rest for index, *rest in gids}
            address, kind, ndev = known.get(row, ("::", "", ""))
            self.write(f"{folder}/ports/1/gids/{row}", self._gid(address))
            if row in known:
                self.write(f"{folder}/ports/1/gid_attrs/types/{row}", kind)
                self.write(f"{folder}/ports/1/gid_attrs/ndevs/{row}", ndev)
        return self

    def roce(self, name, netdev, address, row=3, **more):
        """An adapter with the usual four rows: v1 and v2 of its link-local address, v1 and v2 of its own."""
        local = "fe80::a288:c2ff:fe12:3456"
        gids = (
            (0, local, "IB/RoCE v1", netdev),
            (1, local, "RoCE v2", netdev),
            (row - 1, address, "IB/RoCE v1", netdev),
            (row, address, "RoCE v2", netdev),
        )
        return self.hca(name, **{"link_layer": "Ethernet", "gids": gids, "netdev": netdev} | more)

    def _pci(self, root, bridges, bus, numa) -> str:
        device = "/".join(("sys/devices", root, *bridges, bus))
        self.write(f"{device}/numa_node", str(numa))
        link = self.root / "sys/bus/pci/devices" / bus
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(self.root / device)
        return device

    @staticmethod
    def _gid(address: str) -> str:
        value = IPv6Address(f"::ffff:{IPv4Address(address)}") if "." in address else IPv6Address(address)
        return value.exploded
