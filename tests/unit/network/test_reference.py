"""The page of the built-in networks says what the profiles say."""

from pathlib import Path

from support.networks import ALL_PROFILES
from trainyard.network.reference import page

ROOT = Path(__file__).parents[3]


def test_the_page_says_what_the_profiles_say():
    written = (ROOT / "docs/reference/networks.md").read_text()
    assert written == page(), "run python -m trainyard.network.reference > docs/reference/networks.md"


def test_every_network_has_a_section_with_its_traffic_class():
    sections = dict(part.split("\n", 1) for part in page().split("\n## ")[1:])
    assert list(sections) == [profile.name for profile in ALL_PROFILES]
    for profile in ALL_PROFILES:
        has = profile.roce is not None and profile.roce.dscp is not None
        assert ("`NCCL_IB_TC`" in sections[profile.name]) == has
