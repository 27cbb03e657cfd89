"""Exports, fstab lines and mounts, as text: what is written is read back the same, and a silent fallback is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.nfs import text

PATHS = st.text(st.characters(blacklist_characters="\x00\n", blacklist_categories=["Cs"]), min_size=1).map(
    lambda word: "/" + word.strip("/")
)
ASKED = text.parse_options("ro,hard,vers=4.2,proto=rdma,port=20049,rsize=1048576,nconnect=8,timeo=600")


def test_a_snapshot_of_the_cache_exports_its_repository() -> None:
    root = "/home/spark/.cache/huggingface/hub/models--deepseek-ai--DeepSeek-V4.1-Flash"
    assert text.split(f"{root}/snapshots/dba1be0a") == (root, "snapshots/dba1be0a")
    assert text.split(f"{root}/snapshots/dba1be0a/") == (root, "snapshots/dba1be0a")
    assert text.split("/srv/model/") == ("/srv/model", "")
    assert text.split("/srv/snapshots/x") == ("/srv/snapshots/x", "")
    assert text.split("/") == ("/", "")


def test_everybody_acts_as_the_owner_and_nobody_writes() -> None:
    options = text.export_options(1000, 100).split(",")
    assert {"ro", "all_squash", "anonuid=1000", "anongid=100"} <= set(options)
    assert not {"rw", "no_root_squash", "insecure"} & set(options)


def test_exports_name_the_clients_and_nobody_else() -> None:
    made = text.exports_text("/srv/my model", ["10.0.2.2", "10.0.1.2", "10.0.1.2"], "ro")
    assert made.splitlines()[1] == "/srv/my\\040model 10.0.1.2(ro) 10.0.2.2(ro)"


@settings(deadline=None, derandomize=True)
@given(PATHS)
def test_an_exported_path_is_one_word(path: str) -> None:
    line = text.exports_text(path, ["10.0.0.1"], "ro").split("\n")[1]
    word, client = line.split(" ")
    assert client == "10.0.0.1(ro)"
    assert (
        bytes(word, "utf-8").decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")[0] == "/"
    )


@settings(deadline=None, derandomize=True)
@given(
    PATHS,
    st.lists(st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), max_size=40)),
)
def test_our_line_comes_and_goes_and_the_others_stay(point: str, lines: list[str]) -> None:
    theirs = "".join(f"{line}\n" for line in lines if not line.rstrip().endswith(text.MARK))
    line = text.fstab_line("10.0.0.1:/a b", point, "ro")
    once = text.with_ours(theirs, line)
    assert text.with_ours(once, line) == once
    assert text.without_ours(once) == theirs
    assert len(line.split(" # ")[0].split(" ")) == 6


def test_the_mount_at_a_point_is_the_last_one() -> None:
    mounts = text.parse_mounts(
        "10.0.0.1:/m /srv/share nfs4 ro,vers=4.2 0 0\nbroken\n10.0.0.1:/n /srv/my\\040share nfs4 ro 0 0\n"
        "other /srv/share ext4 rw 0 0\n"
    )
    found = text.at(mounts, "/srv/share")
    assert found is not None
    assert found.kind == "ext4"
    assert text.at(mounts, "/srv/my share") is not None
    assert text.at(mounts, "/srv") is None


def _mount(options: str, kind: str = "nfs4") -> text.Mount:
    return text.Mount("10.0.0.1:/m", "/srv/share", kind, tuple(options.split(",")))


GOOD = "ro,relatime,vers=4.2,rsize=1048576,wsize=1048576,hard,proto=rdma,nconnect=8,port=20049,addr=10.0.0.1"


def test_what_was_asked_for_has_no_fallback() -> None:
    assert text.fallbacks(ASKED, _mount(GOOD), "10.0.0.1") == []


@pytest.mark.parametrize(
    ("was", "became", "words"),
    [
        ("proto=rdma", "proto=tcp", "asked for proto=rdma, got proto=tcp"),
        ("rsize=1048576", "rsize=131072", "asked for rsize=1048576, got rsize=131072"),
        ("nconnect=8,", "", "asked for nconnect=8, got nconnect=1"),
        ("vers=4.2", "vers=4.1", "asked for vers=4.2, got vers=4.1"),
        ("addr=10.0.0.1", "addr=192.168.0.9", "asked for the server's address 10.0.0.1, got 192.168.0.9"),
        ("ro,", "rw,", "mounted writable, asked for read-only"),
    ],
)
def test_each_silent_fallback_is_named(was: str, became: str, words: str) -> None:
    assert text.fallbacks(ASKED, _mount(GOOD.replace(was, became)), "10.0.0.1") == [words]


def test_a_mount_that_is_no_nfs_says_that_it_can_not_be_read_back() -> None:
    assert "cannot be read back" in text.fallbacks(ASKED, _mount("ro", "fuse.nfs"), "10.0.0.1")[0]


def test_a_mount_is_known_by_the_id_of_the_last_one_at_its_place() -> None:
    mountinfo = (
        "30 23 0:26 / /srv/a\\040b rw - nfs4 s:/x rw\n"
        "31 23 0:27 / /srv/other rw - nfs4 s:/y rw\n"
        "44 23 0:28 / /srv/a\\040b rw - nfs4 s:/x rw\n"
    )
    assert text.mount_id(mountinfo, "/srv/a b") == "44"
    assert text.mount_id(mountinfo, "/srv") == ""
