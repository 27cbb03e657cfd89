"""Images are the same or not, whatever store and release of the engine describes them.

`cases/docker/inspect-20.10-overlay2.json` is recorded from Docker 20.10.24. The two 29 files are written from Docker's
published API reference (1.52) and release notes, not recorded: no such engine was at hand.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.actions.image import size_bytes
from node_agent.image import addresses, identity
from node_agent.image.publish import platform_of

CASES = Path(__file__).resolve().parents[1] / "cases" / "docker"


def _image(name: str) -> identity.Image:
    return identity.parse_all((CASES / name).read_text())[0]


def test_both_stores_of_docker_29_and_the_old_engine_name_the_same_image() -> None:
    old, classic, containerd = (
        _image(name)
        for name in (
            "inspect-20.10-overlay2.json",
            "inspect-29-overlay2.json",
            "inspect-29-containerd.json",
        )
    )
    assert old.id == classic.id != containerd.id
    assert old.rootfs == classic.rootfs == containerd.rootfs
    assert old.content == classic.content == containerd.content == "abc"
    assert old.platform == classic.platform == containerd.platform == "linux/amd64"
    assert old.config == classic.config == old.id
    assert containerd.config is None  # its Id is the digest of an index


def test_the_store_is_read_from_docker_info() -> None:
    graph = {"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}
    containerd = {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
    assert not identity.uses_containerd_store(graph)
    assert identity.uses_containerd_store(containerd)
    assert not identity.uses_containerd_store({})


@pytest.mark.parametrize("text", ["{}", "[{}]", '[{"Id": "sha256:1"}]', "[1]", "[[]]", '[{"Config": 3}]'])
def test_what_is_no_image_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="image"):
        identity.parse_all(text)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["Id", "Os", "Architecture", "Config", "Labels", "RootFS", "Layers", "Descriptor", "Size"]
                ),
                x,
            )
        ),
        max_leaves=12,
    )
)
def test_no_description_does_more_than_fail(value: object) -> None:
    with contextlib.suppress(ValueError):
        identity.parse_all(json.dumps([value]))


@pytest.mark.parametrize(
    ("api", "named"), [("1.41", False), ("1.47", False), ("1.48", True), ("1.52", True), ("2.0", True)]
)
def test_save_names_the_platform_where_the_engine_knows_it(api: str, named: bool) -> None:
    assert platform_of(json.dumps({"ApiVersion": api})) is named


def test_a_layer_counts_only_with_all_below_it() -> None:
    def image(*layers: str) -> identity.Image:
        return identity.Image("i", (), (), "", "linux/arm64", layers, None, 0)

    have = [image("a", "b", "x"), image("b", "c"), image("a")]
    assert identity.common_prefix(("a", "b", "c"), have) == 2
    assert identity.common_prefix(("b", "c", "d"), have) == 2
    assert identity.common_prefix(("c", "a"), have) == 0
    assert identity.common_prefix((), have) == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1.076GB (100%)", 1_076_000_000),
        ("0B", 0),
        ("12.5MB", 12_500_000),
        ("3kB (1%)", 3000),
        ("N/A", 0),
        ("GB", 0),
    ],
)
def test_sizes_as_docker_prints_them(text: str, size: int) -> None:
    assert size_bytes(text) == size


def test_addresses_of_links_that_are_up() -> None:
    text = json.dumps(
        [
            {
                "ifname": "lo",
                "flags": ["UP"],
                "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8, "scope": "host"}],
            },
            {
                "ifname": "enp1s0f0np0",
                "mtu": 9000,
                "flags": ["UP"],
                "operstate": "UP",
                "addr_info": [
                    {"family": "inet", "local": "192.168.101.1", "prefixlen": 30, "scope": "global"}
                ],
            },
            {
                "ifname": "enp1s0f1np1",
                "mtu": 9000,
                "flags": ["UP"],
                "operstate": "DOWN",
                "addr_info": [
                    {"family": "inet", "local": "192.168.102.1", "prefixlen": 30, "scope": "global"}
                ],
            },
            {
                "ifname": "docker0",
                "mtu": 1500,
                "flags": ["UP"],
                "operstate": "UP",
                "addr_info": [{"family": "inet", "local": "172.17.0.1", "prefixlen": 16, "scope": "global"}],
            },
        ]
    )
    assert addresses.parse(text) == [("enp1s0f0np0", "192.168.101.1/30", 9000)]
    assert addresses.parse("") == []
