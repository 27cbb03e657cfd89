"""build, share and pack on real Docker engines and OpenSSH, twice, and what goes wrong on real links.

Each test leaves the fleet with image, share and packed stores, as the next one wants it; the last one takes it back.
"""

from __future__ import annotations

import json
import os
import time

import pytest

from orchestrator.model import event as events
from orchestrator.plan import image
from tests.integration.fleet import BASE, Fleet
from tests.integration.yard import wire

EXPORTS = "/etc/exports.d/sparkyard.exports"
MOUNT = "/srv/nvme/sparkyard/share/nfs"
SLOW_MBIT = 100
"""So slow that a test can step in while the image travels, eight seconds over both rails."""
SOME_BYTES = 40 << 20
ARRIVE_S = 120.0


def reached(fleet: Fleet, verb: str) -> Fleet:
    """Plans nothing after the tests before it; reaches the state where one of them is tried alone."""
    answer = fleet.do(verb)
    assert answer.exit_code == 0, answer.data["failures"]
    return fleet


@pytest.fixture(scope="module")
def built(fleet: Fleet) -> Fleet:
    """The image is on every node."""
    return reached(fleet, "build")


@pytest.fixture(scope="module")
def shared(built: Fleet) -> Fleet:
    """Every node reads the checkpoint."""
    return reached(built, "share")


@pytest.fixture(scope="module")
def packed(shared: Fleet) -> Fleet:
    """Every node has its own stores."""
    return reached(shared, "pack")


def forget_image(fleet: Fleet, name: str) -> None:
    """The node has lost the image, whole."""
    wanted = image.content(fleet.session().goal()[0])
    fleet.yard.run(name, "docker", "rmi", f"sparkyard/engine:{wanted[:12]}", timeout_s=300)


def arrived(fleet: Fleet, name: str, count: int) -> None:
    """Wait until the node has received so many bytes over its fabric ports."""
    end = time.monotonic() + ARRIVE_S
    while wire.received_bytes(fleet.yard, name) < count:
        assert time.monotonic() < end
        time.sleep(0.1)


def unshape(fleet: Fleet) -> None:
    for rail in (0, 1):
        wire.shape(fleet.yard, "spark-1", rail, 0)


def test_build_makes_one_image_and_every_node_gets_it(fleet: Fleet) -> None:
    before = {node.name: wire.received_bytes(fleet.yard, node.name) for node in fleet.yard.layout.nodes}
    answer = fleet.do("build")
    assert answer.exit_code == 0, answer.data["failures"]
    assert fleet.titles(answer)[-3:] == [
        "build the image",
        "offer the image on the fast links",
        "fan the image out",
    ]
    facts = fleet.facts()
    images = [here.docker.images[0] for here in facts.values() if here.docker]
    assert len(images) == 4
    assert len({(one.rootfs, one.config, one.platform, one.content) for one in images}) == 1
    for node in fleet.yard.layout.nodes[1:]:
        received = wire.received_bytes(fleet.yard, node.name) - before[node.name]
        assert received < 1.6 * images[0].size_bytes, node.name
    assert fleet.titles(fleet.do("build")) == []


@pytest.mark.usefixtures("built")
def test_a_base_that_was_replaced_under_its_name_is_refused(fleet: Fleet) -> None:
    head = fleet.yard.layout.nodes[0].name
    recorded = json.loads(fleet.yard.run(head, "cat", "/srv/nvme/sparkyard/images.lock"))["images"][BASE][
        "digest"
    ]
    seen = ("docker", "image", "inspect", "--format", "{{.Id}}", BASE)
    assert fleet.yard.run(head, *seen).strip() == recorded
    forget_image(fleet, head)
    change = f"printf 'FROM {BASE}\nLABEL moved=1\n' | docker build --quiet --tag {BASE} -"
    fleet.yard.run(head, "sh", "-c", change, timeout_s=300)
    moved = fleet.yard.run(head, *seen).strip()
    answer = fleet.do("build")
    assert answer.exit_code == 1
    said = answer.data["failures"][0]["message"]
    assert f"has drifted: now {moved}" in said
    assert recorded in said
    fleet.yard.run(head, "docker", "tag", recorded, BASE)
    answer = fleet.do("build")
    assert answer.exit_code == 0, answer.data["failures"]
    assert fleet.titles(answer)[0] == "build the image"


@pytest.mark.usefixtures("built")
def test_share_is_proven_and_writes_what_a_reboot_needs(fleet: Fleet) -> None:
    answer = fleet.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert fleet.titles(answer) == ["export the checkpoint", "reach the checkpoint", "prove what is read"]
    proofs = {here.proof.blocks_sha256 for here in fleet.facts().values() if here.proof}
    assert len(proofs) == 1
    head, *others = (node.name for node in fleet.yard.layout.nodes)
    exports = fleet.yard.run(head, "cat", EXPORTS)
    assert "all_squash" in exports
    assert "*" not in exports.splitlines()[1]
    assert MOUNT in fleet.yard.run(others[0], "cat", "/etc/fstab")
    assert fleet.titles(fleet.do("share")) == []


@pytest.mark.usefixtures("shared")
def test_pack_runs_in_the_image_on_every_node(fleet: Fleet) -> None:
    answer = fleet.do("pack")
    assert answer.exit_code == 0, answer.data["failures"]
    stores = [store for here in fleet.facts().values() for store in here.stores]
    for kind in ("tables", "slices"):
        assert len({store.store for store in stores if store.kind == kind}) == 4
    assert all(store.complete for store in stores)
    assert fleet.titles(fleet.do("pack")) == []
    for node in fleet.yard.layout.nodes:
        assert fleet.yard.run(node.name, "docker", "ps", "-aq").strip() == ""


@pytest.mark.usefixtures("packed")
def test_the_command_line_plans_nothing_more_and_says_how_it_stands(fleet: Fleet) -> None:
    for verb in ("build", "share", "pack"):
        done = fleet.command_line("plan", verb, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["stages"] == []
    status = fleet.command_line("status", "--json")
    assert status.returncode in {0, 1}, status.stderr  # nothing serves: said so, not a crash
    assert json.loads(status.stdout)["schema"].startswith("sparkyard/status/")


@pytest.mark.usefixtures("packed")
def test_nothing_was_predicted_wrong(fleet: Fleet) -> None:
    assert not [event for event in fleet.events if isinstance(event, events.PredictionMissed)]


@pytest.mark.usefixtures("packed")
def test_a_node_that_was_made_again_gets_only_what_it_lost(fleet: Fleet) -> None:
    fleet.yard.power_off("spark-3")
    answer = fleet.do("share")
    assert answer.exit_code != 0
    assert answer.data["failures"][0]["node"] == "spark-3"
    fleet.yard.heal()
    fleet.yard.engines()
    assert fleet.titles(fleet.do("build")) == []  # its disk has the image still
    answer = fleet.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert fleet.titles(answer)[0] == "reach the checkpoint"
    assert {step["node"] for step in fleet.steps(answer)} == {"spark-3"}
    assert fleet.titles(fleet.do("pack")) == []


@pytest.mark.usefixtures("shared")
def test_a_server_that_went_away_is_named_and_the_share_is_healed(fleet: Fleet) -> None:
    fleet.yard.run("spark-2", "umount", "-l", MOUNT)
    problem = fleet.facts()["spark-2"].share
    assert problem is not None
    assert problem.problem == "not mounted"
    answer = fleet.do("share")
    assert answer.exit_code == 0, answer.data["failures"]
    assert "its share is broken" in answer.data["stages"][0]["steps"][0]["why"]


@pytest.mark.usefixtures("built")
def test_a_full_disk_fails_alone(fleet: Fleet) -> None:
    head = fleet.yard.layout.nodes[0].name
    wanted = image.content(fleet.session().goal()[0])
    for name in ("spark-2", "spark-4"):
        forget_image(fleet, name)
    fleet.yard.run("spark-4", "mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", "/srv/nvme/docker/tmp")
    try:
        answer = fleet.do("build")
    finally:
        fleet.yard.run("spark-4", "umount", "/srv/nvme/docker/tmp")
    assert answer.exit_code == 1
    assert [failure["node"] for failure in answer.data["failures"]] == ["spark-4"]
    assert "space" in answer.data["failures"][0]["message"]
    assert fleet.facts()["spark-2"].docker.image(wanted) is not None  # type: ignore[union-attr]
    answer = fleet.do("build")
    assert answer.exit_code == 0, answer.data["failures"]
    assert {step["node"] for step in answer.data["stages"][-1]["steps"]} == {"spark-4"}
    assert head not in {step["node"] for step in answer.data["stages"][-1]["steps"]}


@pytest.mark.usefixtures("built")
def test_a_cable_that_is_cut_and_joined_while_the_image_travels(fleet: Fleet) -> None:
    forget_image(fleet, "spark-2")
    for rail in (0, 1):
        wire.shape(fleet.yard, "spark-1", rail, SLOW_MBIT)
    begin = wire.received_bytes(fleet.yard, "spark-2")
    pid = os.fork()
    if pid == 0:
        arrived(fleet, "spark-2", begin + SOME_BYTES)
        wire.cut(fleet.yard, "spark-1", 0)
        time.sleep(4)
        wire.join(fleet.yard, "spark-1", 0)
        os._exit(0)
    answer = fleet.do("build")
    assert os.waitpid(pid, 0)[1] == 0
    unshape(fleet)
    assert answer.exit_code == 0, answer.data["failures"]


@pytest.mark.usefixtures("built")
def test_a_rail_at_a_tenth_of_the_other_is_named_and_carries_less(fleet: Fleet) -> None:
    forget_image(fleet, "spark-2")
    wire.shape(fleet.yard, "spark-1", 0, 2 * SLOW_MBIT)
    wire.shape(fleet.yard, "spark-1", 1, 2 * SLOW_MBIT // 10)
    fleet.events.clear()
    answer = fleet.do("build")
    unshape(fleet)
    assert answer.exit_code == 0, answer.data["failures"]
    slow = fleet.yard.layout.node("spark-1").fabric[1].address
    said = [event.text for event in fleet.events if isinstance(event, events.Said)]
    assert any(f"spark-2: the link to {slow} is slow" in text for text in said), said


@pytest.mark.usefixtures("built")
def test_a_controller_that_is_killed_half_way_is_gone_on_with(fleet: Fleet) -> None:
    """The nodes go on without it; the next one joins what runs, and the image crosses each link once in all."""
    size = max(one.size_bytes for here in fleet.facts().values() if here.docker for one in here.docker.images)
    others = [node.name for node in fleet.yard.layout.nodes[1:]]
    for name in others:
        forget_image(fleet, name)
    for rail in (0, 1):
        wire.shape(fleet.yard, "spark-1", rail, SLOW_MBIT)
    before = {name: wire.received_bytes(fleet.yard, name) for name in others}
    with fleet.started("build", "--yes", "--json") as running:
        arrived(fleet, "spark-2", before["spark-2"] + SOME_BYTES)
        running.kill()
    fleet.events.clear()
    answer = fleet.do("build")
    unshape(fleet)
    assert answer.exit_code == 0, answer.data["failures"]
    for name in others:
        told = [one.result for one in fleet.events if isinstance(one, events.StepDone) and one.node == name]
        assert wire.received_bytes(fleet.yard, name) - before[name] < 1.15 * size, (name, told)


@pytest.mark.usefixtures("built")
def test_a_damaged_copy_is_refused_and_prune_is_the_way_out(fleet: Fleet) -> None:
    blobs = fleet.yard.disk("spark-1") / "sparkyard/registry/docker/registry/v2/blobs/sha256"
    largest = max(blobs.glob("*/*/data"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    forget_image(fleet, "spark-3")
    answer = fleet.do("build")
    assert answer.exit_code == 1
    assert [failure["node"] for failure in answer.data["failures"]] == ["spark-3"]
    assert "published copy" in answer.data["failures"][0]["message"]
    assert not fleet.facts()["spark-3"].docker.images  # type: ignore[union-attr]
    done = fleet.command_line("prune", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    answer = fleet.do("build")
    assert answer.exit_code == 0, answer.data["failures"]
    assert {step["node"] for step in answer.data["stages"][-1]["steps"]} == {"spark-3"}


@pytest.mark.usefixtures("built")
def test_prune_shows_sizes_first_and_keeps_the_image_in_use(fleet: Fleet) -> None:
    shown = json.loads(fleet.command_line("prune", "--json").stdout)
    assert not shown["removed"]
    assert shown["bytes"] > 0
    assert any("registry" in item["what"] for item in shown["nodes"]["spark-1"]["items"])
    done = fleet.command_line("prune", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(fleet.command_line("prune", "--json").stdout)["bytes"] == 0
    assert fleet.titles(fleet.do("build")) == []


@pytest.mark.usefixtures("shared")
def test_unshare_takes_everything_back(fleet: Fleet) -> None:
    answer = fleet.do("unshare")
    assert answer.exit_code == 0, answer.data["failures"]
    assert fleet.titles(answer) == ["detach the checkpoint", "take the export back"]
    head, *others = (node.name for node in fleet.yard.layout.nodes)
    assert fleet.yard.run(head, "sh", "-c", f"ls {EXPORTS} 2>/dev/null || echo gone").strip() == "gone"
    for name in others:
        assert "sparkyard" not in fleet.yard.run(name, "cat", "/etc/fstab")
        assert MOUNT not in fleet.yard.run(name, "cat", "/proc/mounts")
    assert fleet.titles(fleet.do("unshare")) == []
