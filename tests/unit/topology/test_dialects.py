"""The table of dialects."""

import re
from itertools import chain

import pytest
from trainyard.api.model import LABEL_PATTERN
from trainyard.topology.dialects import ATTRIBUTES, CLIQUE, COMPUTE_DOMAINS, DIALECTS, NVLINK, ZONES

EVERY = (*DIALECTS, ZONES, CLIQUE, *COMPUTE_DOMAINS)
TOPOGRAPH = DIALECTS[0]


@pytest.mark.parametrize("dialect", EVERY, ids=lambda dialect: dialect.name)
def test_names_of_levels_can_be_said_in_a_job(dialect):
    tiers = {f"{dialect.tiers}{n}": 1 for n in range(6)} if dialect.tiers else {}
    names = [level.name for level in dialect.spoken({**tiers, **dict.fromkeys(dialect.labels, 1)})]
    assert len(set(names)) == len(names) > 0
    assert all(re.fullmatch(LABEL_PATTERN[1:-1], name) for name in names)


def test_names_of_dialects_tell_them_apart():
    assert len({dialect.name for dialect in EVERY}) == len(EVERY)


def test_there_may_be_any_number_of_topographs_tiers():
    labels = {f"fabric.topograph.run/tier-{n}": 1 for n in range(12)}
    levels = list(TOPOGRAPH.spoken(labels))
    assert [level.label for level in levels] == [f"fabric.topograph.run/tier-{n}" for n in range(11, -1, -1)]
    assert [level.name for level in levels[-5:]] == ["tier-4", "tier-3", "core", "spine", "leaf"]


@pytest.mark.parametrize("tier", ["", "x", "-1", "01", "1.5", "1000", "٣"])
def test_what_only_looks_like_a_tier_is_none(tier):
    assert not TOPOGRAPH.speaks(f"fabric.topograph.run/tier-{tier}")
    assert list(TOPOGRAPH.spoken({f"fabric.topograph.run/tier-{tier}": 1})) == []


def test_aws_counts_from_the_top_and_topograph_from_the_bottom():
    aws = next(dialect for dialect in DIALECTS if dialect.name == "aws")
    assert [level.label[-1] for level in aws.levels if "layer" in level.label] == ["1", "2", "3", "4"]
    assert [level.name for level in TOPOGRAPH.spoken({f"{TOPOGRAPH.tiers}{n}": 1 for n in (0, 1)})] == ["spine", "leaf"]


def test_a_clique_is_a_domain_and_its_partition():
    domain, partition = CLIQUE.levels
    labels = {"nvidia.com/gpu.clique": "7f2c-11.32766"}
    assert (domain.domain(labels), partition.domain(labels)) == ("7f2c-11", "7f2c-11.32766")
    assert partition.name == NVLINK


def test_attributes_of_devices_are_no_labels_of_nodes():
    labels = set(chain.from_iterable(d.labels for d in DIALECTS if not d.name.endswith("-dranet")))
    assert not ATTRIBUTES & labels
    assert "oke.dra.net/gpuMemoryFabricId" in ATTRIBUTES
