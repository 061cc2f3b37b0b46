"""What the variables do that vendors' guides write, for whoever asks why one is there. The values are the vendor's business.

After NCCL 2.30.7 (src/param.cc, src/transport/net_ib), aws-ofi-nccl (doc), GKE's gpudirect-tcpxo and gpudirect-rdma (README).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainyard.network.roce import dscp

_MEANINGS: Final[Mapping[str, str]] = {
    "CUDA_DEVICE_ORDER": "CUDA numbers accelerators as the PCI bus does, and so as tools and topology files do",
    "LD_LIBRARY_PATH": "the plugin's and the driver's libraries are in these folders of the node",
    "NCCL_ALGO=COLLNETCHAIN": "reductions in the switches (SHARP), not around them",
    "NCCL_BUFFSIZE": "bytes of each channel's buffer; the plugin is tuned for them",
    "NCCL_COLLNET_ENABLE=0": "the switches reduce nothing (SHARP is off) unless coreweave-ib-sharp is chosen",
    "NCCL_COLLNET_ENABLE=1": "the switches reduce (SHARP)",
    "NCCL_CUMEM_ENABLE=0": "buffers without CUDA's virtual memory, which these machines' guide switches off",
    "NCCL_CUMEM_ENABLE=1": "buffers in CUDA's virtual memory, without which NVLink does not go beyond the node",
    "NCCL_FASTRAK_CTRL_DEV": "the interface over which the plugin's connections are made",
    "NCCL_FASTRAK_ENABLE_CONTROL_CHANNEL": "the plugin has no connections of its own for control",
    "NCCL_FASTRAK_IFNAME": "the interfaces of the compute network",
    "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "where the plugin finds the devices for small messages",
    "NCCL_FASTRAK_NUM_FLOWS": "TCP connections of each channel",
    "NCCL_FASTRAK_PLUGIN_ACCEPT_TIMEOUT_MS": "how long the plugin waits for a peer: pods do not start at once",
    "NCCL_FASTRAK_USE_LLCM": "small messages go by the devices of the node",
    "NCCL_FASTRAK_USE_SNAP": "packets go through the daemon beside the container, past the kernel",
    "NCCL_IB_ADAPTIVE_ROUTING": "switches may spread the packets of one connection over several ways",
    "NCCL_IB_PCI_RELAXED_ORDERING": "adapters may write out of order; virtual machines hide that they can",
    "NCCL_IB_QPS_PER_CONNECTION": "queue pairs of each connection, so that switches spread them over equal ways",
    "NCCL_IB_SPLIT_DATA_ON_QPS": "each message stays on one queue pair",
    "NCCL_IGNORE_CPU_AFFINITY": "NCCL's threads run near the accelerators, wherever the process was bound",
    "NCCL_MIN_NCHANNELS": "channels of a collective, at least",
    "NCCL_NET_GDR_C2C": "GPUDirect also by the way through Grace",
    "NCCL_NET_GDR_LEVEL=PIX": "GPUDirect only between an accelerator and an adapter on one PCIe switch",
    "NCCL_NET_PLUGIN=none": "NCCL drives the adapters itself; a plugin of the image would take its place",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": "bytes of a piece in NVLink's tree, at most",
    "NCCL_NVLS_CHUNKSIZE": "bytes of a piece that NVLink's switches reduce",
    "NCCL_NVLS_ENABLE=1": "NVLink's switches reduce",
    "NCCL_NVLS_NCHANNELS": "channels in which NVLink's switches reduce",
    "NCCL_P2P_NET_CHUNKSIZE": "bytes of a piece between two ranks over the network",
    "NCCL_P2P_NVL_CHUNKSIZE": "bytes of a piece between two ranks over NVLink",
    "NCCL_P2P_PCI_CHUNKSIZE": "bytes of a piece between two ranks over PCIe",
    "NCCL_PROTO": "the protocols that the plugin is tuned for",
    "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": "against which the plugin checks all of these settings",
    "NCCL_TUNER_CONFIG_PATH": "measured on this machine: which algorithm and protocol for which size",
    "NCCL_TUNER_PLUGIN": "the vendor's plugin chooses algorithm and protocol by size",
    "NVIDIA_IMEX_CHANNELS": "the channel for NVLink beyond the node, of daemons that the host runs itself",
    "SHARP_COLL_ENABLE_PCI_RELAXED_ORDERING": "SHARP's library, where it is used, lets adapters write out of order",
}


def meaning(name: str, value: str) -> str | None:
    """What a variable of a profile does, by its name, or by name and value where the value turns it; None where nobody said."""
    if name == "NCCL_IB_FIFO_TC" and value.isdecimal():
        return f"control messages have DSCP {dscp(int(value))}, a class of their own"
    return _MEANINGS.get(f"{name}={value}") or _MEANINGS.get(name)
