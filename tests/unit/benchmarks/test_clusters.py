"""The generators make the clusters that they say, and the same ones again."""

from collections import Counter

import pytest
from trainyard.world.inventory import Inventory

from benchmarks import clusters, lingjun


def tree(nodes):
    return Inventory.of(clusters.world(nodes)).tree


def test_a_fat_tree_is_filled_from_the_left():
    index = tree(clusters.fat_tree(1050, hosts=20, leaves=5, spines=3)).index
    assert [len(domains) for domains in index.at_depth] == [1, 4, 11, 53]  # 300 a core, 100 a spine, 20 a leaf
    sizes = Counter(index.domains[n].end - index.domains[n].first for n in index.at_depth[3])
    assert sizes == {20: 52, 10: 1}


def test_rail_pods_have_units_as_leaves():
    nodes = clusters.rail_pods(3, units=4, hosts=32)
    assert len(nodes) == 384
    assert [level.name for level in tree(nodes).levels] == ["fabric", "spine", "leaf"]
    assert [len(domains) for domains in tree(nodes).index.at_depth] == [1, 1, 3, 12]


def test_nvl72_racks_have_eighteen_nodes():
    nodes = clusters.nvl72(40, racks_per_leaf=4, leaves=5)
    index = tree(nodes).index
    assert [level.name for level in tree(nodes).levels] == ["spine", "leaf", "nvlink"]
    assert [len(domains) for domains in index.at_depth] == [1, 2, 10, 40]
    assert {index.domains[n].end - index.domains[n].first for n in index.at_depth[3]} == {18}


def test_so_large_a_share_is_taken_and_the_seed_says_which():
    nodes = clusters.fat_tree(200)
    first, again, other = (clusters.occupied(nodes, 0.3, seed) for seed in (1, 1, 2))
    inventory = Inventory.of(first)
    taken = [node.name for node in nodes if inventory.free(node.name)[clusters.GPU] == 0]
    assert len(taken) == 60
    assert first == again != other


def test_lingjun_is_read_by_path_and_in_the_order_of_time(tmp_path):
    (tmp_path / lingjun.TOPOLOGY).write_text(
        "host,core,aggregation,access\nh-0,G6,P10,S1\nh-1,G6,P12,S1\nh-2,G6,P12,S1\n"
    )
    (tmp_path / lingjun.JOBS).write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,a\n2017-10-09 06:13:03,51.0,16,51.0,b\n\n"
    )
    assert [len(domains) for domains in tree(lingjun.topology(tmp_path)).index.at_depth] == [1, 1, 2, 2]
    first, second = lingjun.arrivals(tmp_path)
    assert (first.gpus, second.gpus) == (16, 1)
    assert second.submitted - first.submitted == pytest.approx(48 * 60 + 52)
