"""The Dockerfile's own steps for the architecture of a Spark, run by emulation on a yard's node.

The base image is a stand-in; what is built, installed and tested by itself on top of it is the product.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model.facts import ClusterFacts
from orchestrator.model.step import BuildImage, Decision, InstallEngine, PutBlob, Stage, Step
from orchestrator.run import converge
from tests.integration.fleet import Fleet, base_image
from tests.integration.yard.session import network

BASE = "sparkyard-test/base-arm64:1"
PLATFORM = "linux/arm64"
CONTENT = "a" * 64
BUILD_BOUND_S = 500.0
"""A C++ compiler under emulation on a busy machine; 60 s on an idle one."""
BINFMT = "/proc/sys/fs/binfmt_misc"
NAME = "sparkyard-test-aarch64"
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
"""Start of an ELF file of 64 bits for AArch64, executable or shared (binfmt_misc of the kernel's documentation)."""


@pytest.fixture
def emulation(need_root: None) -> Iterator[None]:
    """The kernel starts AArch64 programs through qemu; taken back afterwards."""
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("needs qemu-aarch64-static (tests/integration/install.sh vm)")
    mounted = Path(BINFMT, "register").exists()
    if not mounted:
        subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=True)
    known = any("aarch64" in path.name for path in Path(BINFMT).iterdir())
    try:
        if not known:  # F: the emulator is opened now, so that it is there inside of containers too
            Path(BINFMT, "register").write_text(f":{NAME}:M::{MAGIC}:{MASK}:{emulator}:F")
        yield
    finally:
        if not known:
            Path(BINFMT, NAME).write_text("-1")
        if not mounted:
            subprocess.run(["umount", BINFMT], check=True)


def test_the_dockerfile_builds_and_tests_itself_for_arm64(fleet: Fleet, emulation: None) -> None:
    yard, head = fleet.yard, fleet.yard.layout.nodes[0].name
    folder = yard.disk(head) / "arm64"
    folder.mkdir()
    shutil.copy(base_image(Path.home() / ".cache/sparkyard/yard", "arm64"), folder / "base.tar")
    (folder / "Dockerfile").write_text(
        "FROM scratch\nADD base.tar /\n"
    )  # `docker import` marks it as the host's own
    argv = ["docker", "build", "--quiet", "--platform", PLATFORM, "--tag", BASE, "/srv/nvme/arm64"]
    yard.run(head, "env", "DOCKER_BUILDKIT=1", *argv, timeout_s=300)
    shutil.rmtree(folder)
    goal, payloads = fleet.session().goal()
    package = goal.package
    put = Step(head, PutBlob(package.digest, package.size_bytes), "", 60.0)
    install = Step(head, InstallEngine(package.digest), "", 120.0)
    build = Step(head, BuildImage(CONTENT, package.digest, BASE, PLATFORM, BUILD_BOUND_S), "", BUILD_BOUND_S)

    def decide(facts: ClusterFacts) -> Decision:
        here = facts[head]
        if package.digest not in {*here.engines, *here.blobs}:
            return Stage("send", (put,))
        if package.digest not in here.engines:
            return Stage("unpack", (install,))
        return None if here.docker and here.docker.image(CONTENT) else Stage("build for arm64", (build,))

    async def go() -> tuple[str, ...]:
        async with fleet.session().world(payloads) as world:
            return tuple(failure.message for failure in (await converge(world, decide)).failures)

    try:
        with network(yard.layout.controller):
            assert asyncio.run(go()) == ()
        tag = f"sparkyard/engine:{CONTENT[:12]}"
        shown = json.loads(yard.run(head, "docker", "image", "inspect", tag))[0]
        assert shown["Architecture"] == "arm64"
        assert shown["Config"]["Labels"]["sparkyard.content"] == CONTENT
        asked = "import platform; from sparkyard_engine.engram import native; "
        asked += "print(platform.machine(), native.library().crc32c(b'123456789'))"
        argv = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", tag, "-c", asked]
        assert yard.run(head, *argv, timeout_s=120).split() == ["aarch64", str(0xE3069283)]
    finally:
        yard.run(
            head, "docker", "rmi", "-f", f"sparkyard/engine:{CONTENT[:12]}", BASE, check=False, timeout_s=120
        )
