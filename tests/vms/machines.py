"""Two virtual machines as a fleet of sparkyard: a checkpoint in a closed home, a profile, the verbs."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from orchestrator.errors import Undetermined
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Event, StepDone
from orchestrator.model.facts import ClusterFacts
from orchestrator.model.profile import Profile
from orchestrator.run import observe
from orchestrator.verbs import LEDGER, Answer, Session, converging
from sparkyard_engine.engram.hashing import Layout
from tests.engram_checkpoint import write_checkpoint
from tests.integration.fleet import NO_SPARKS
from tests.integration.yard import vms
from tests.integration.yard.session import network
from tests.vms import product

OWNER = 1234
REPOSITORY = "/home/owner/hub/models--sparkyard--lab"
SNAPSHOT = f"{REPOSITORY}/snapshots/abc"
MOUNT = "/srv/sparkyard/share/nfs"
UNIT = "sparkyard-monitor-lab.service"
NAMES = ("spark-1", "spark-2")
BELOW_START_BYTES = 480 << 20
"""A rank of the stand-in engine takes 60 MB of 1.5 GB, the monitor and its agents 200 MB."""
NO_MEMORY = (*NO_SPARKS, LEDGER)
"""And the ledgers are right to refuse a machine with 1.5 GB."""
ATTEMPTS = 4
SLOW = frozenset({"timeout", "unreachable"})
BOUND_S = 240
"""Of each phase of a start: an emulated Python needs 10 s for what takes 0.5 s otherwise."""


def patient() -> bool:
    """Whether what loads the whole of sparkyard inside of the machines runs: emulated that takes ten minutes."""
    return vms.accelerated() or os.environ.get("SPARKYARD_EMULATE") == "1"


needs_patience = pytest.mark.skipif(
    not patient(), reason="no KVM here, and not asked for with SPARKYARD_EMULATE=1"
)


@dataclass
class Machines:
    """Both, and a profile."""

    vms: vms.Vms
    share: dict[str, object] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def profile(self) -> Profile:
        """The lab's profile for two nodes, with what the tests ask of the share."""
        body = load_profile("lab").model_dump(mode="json", by_alias=True)
        body["parallel"] = {"tp": 2, "padding": None}
        body["share"] |= self.share
        body["band"] = None
        body["deadlines"] |= dict.fromkeys(body["deadlines"], BOUND_S) | {"drain_s": 20, "memory_s": 10}
        body["memory"] |= {"gate_bytes": 0, "floor_below_start_bytes": BELOW_START_BYTES}
        return Profile.model_validate(body)

    def session(self) -> Session:
        """As the command line makes one, but strict about predictions."""
        cluster = load_cluster(self.vms.cluster)
        return Session(self.profile(), cluster, self.events.append, strict_conformance=True, ignore=NO_MEMORY)

    def do(self, verb: str) -> Answer:
        """Run a converging verb from the controller's network; again when an emulated node was too slow for a look."""
        self.events.clear()
        for _ in range(ATTEMPTS - 1):
            try:
                answer = self._do(verb)
            except Undetermined:
                continue
            if (
                not all(failure["kind"] in SLOW for failure in answer.data["failures"])
                or not answer.exit_code
            ):
                return answer
        return self._do(verb)

    def _do(self, verb: str) -> Answer:
        with network(self.vms.namespace):
            return asyncio.run(converging(self.session(), verb))

    def facts(self) -> ClusterFacts:
        """One look."""

        async def go() -> ClusterFacts:
            async with self.session().world() as world:
                return await observe(world)

        with network(self.vms.namespace):
            return asyncio.run(go())

    def said(self) -> list[str]:
        """What the steps of the last verb told."""
        return [str(event.result) for event in self.events if isinstance(event, StepDone)]

    def until(self, number: int, command: str, wanted: str, bound_s: float) -> str:
        """Ask a machine until its answer holds ``wanted``; the answer."""
        deadline = time.monotonic() + bound_s
        while True:
            said = self.vms.run(number, command, check=False)
            if wanted in said:
                return said
            assert time.monotonic() < deadline, f"no {wanted!r} in: {said[-3000:]}"
            time.sleep(2)


def make(name: str, folder: Path) -> Machines:
    """Start both machines; a checkpoint on the first as a cache's snapshot, in a home with 0750, files with 0600."""
    made = vms.up(name, [product.disk(folder)] if patient() else [])
    body = yaml.safe_load(made.cluster.read_text())
    body["checkpoint"]["path"] = SNAPSHOT
    for node in body["nodes"]:
        node["engine_python"] = product.ENGINE_PYTHON
    made.cluster.write_text(yaml.safe_dump(body, sort_keys=False))
    layout = Layout.build(layer_ids=(1, 3), vocab_size=200, max_ngram_size=4, heads=8)
    write_checkpoint(folder / "checkpoint", layout, 200)
    made.put(1, shutil.make_archive(f"{folder}/files", "tar", folder / "checkpoint"), "/root/files.tar")
    made.run(
        1,
        f"useradd -m -u {OWNER} owner && install -d -o owner {REPOSITORY}/blobs {SNAPSHOT} && cd {SNAPSHOT} && "
        "tar -xf /root/files.tar && rm /root/files.tar && sha256sum * | while read -r digest file; do "
        "mv $file ../../blobs/$digest; ln -s ../../blobs/$digest $file; done; "
        "chown -R owner:owner /home/owner && chmod 750 /home/owner && chmod 600 ../../blobs/*",
        timeout_s=300,
    )
    return Machines(made)
