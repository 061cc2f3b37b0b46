"""Rates of PCIe links, and how much RoCE sends at once."""

import pytest
from trainyard.contract.hardware import active_mtu, pcie_bytes_per_second, pcie_carries


@pytest.mark.parametrize(
    ("gigatransfers", "lanes", "least", "most"),
    [(8.0, 16, 15.7, 15.8), (16.0, 8, 15.7, 15.8), (16.0, 16, 31, 32), (32.0, 16, 63, 63.1), (64.0, 16, 120, 122)],
)
def test_gigabytes_a_second_of_a_pcie_link_in_one_direction(gigatransfers, lanes, least, most):
    assert least <= pcie_bytes_per_second(gigatransfers, lanes) / 1e9 <= most


@pytest.mark.parametrize(
    ("gigatransfers", "gbps", "fits"),
    [(8.0, 100, True), (8.0, 200, False), (16.0, 200, True), (16.0, 400, False), (32.0, 400, True), (64.0, 800, True)],
)
def test_which_slot_an_adapter_needs(gigatransfers, gbps, fits):
    assert pcie_carries(gigatransfers, 16, gbps * 1e9 / 8) is fits


def test_a_speed_that_pcie_does_not_have():
    with pytest.raises(KeyError):
        pcie_bytes_per_second(20.0)


@pytest.mark.parametrize(("interface", "rdma"), [(1500, 1024), (2200, 2048), (4200, 4096), (9000, 4096), (576, 256)])
def test_what_roce_sends_at_once(interface, rdma):
    assert active_mtu(interface) == rdma
