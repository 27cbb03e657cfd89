"""What an attacker would send, through the real entry points: refused cleanly, nothing of it obeyed or kept."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import resource
import stat
import subprocess
import sys
import warnings
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from node_agent import tree
from orchestrator.errors import ConfigError
from orchestrator.load import load_cluster, load_profile
from orchestrator.model.event import Said
from orchestrator.model.plain import UNSAFE, json_line, plain
from orchestrator.remote import local
from orchestrator.remote.channel import WAITING_MAX_BYTES, AgentNode
from orchestrator.remote.node import Ask, Reply, reply
from orchestrator.shards import read_checkpoint
from orchestrator.watch import evidence, replay
from sparkyard_engine.engram import pack
from sparkyard_engine.slices import pack as slices
from tests.engram_checkpoint import write_checkpoint
from tests.engram_stores import LAYOUT, VOCAB
from tests.hostile_agent import ESCAPES, program

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MAX_BYTES = 300 << 20
"""Of a verb that meets a line of 2 GiB; 90 MB are its own code."""
PADDED = ("--padded-heads", "12", "--padded-groups", "6")
KEYS = {"schema": "sparkyard/cluster/v1", "topology": "single-host", "head": "spark-1"}


def agent(folder: Path, python: str = sys.executable) -> AgentNode:
    return AgentNode(
        "spark-1", {"root": str(folder / "root"), "python": python, "recorded": None}, local.dial
    )


def ask(node: AgentNode, *requests: tuple[str, dict[str, Any]]) -> list[Reply]:
    """The replies of one channel, the lease taken first."""

    async def go() -> list[Reply]:
        try:
            lease = await reply(node, Ask("lease", {"holder": "test"}), timeout_s=20)
            fence = lease.value["fence"]
            return [await reply(node, Ask(what, args, fence), timeout_s=20) for what, args in requests]
        finally:
            await node.close()

    return asyncio.run(go())


def hear(node: AgentNode) -> Reply:
    async def go() -> Reply:
        try:
            return await reply(node, Ask("facts"), timeout_s=20)
        finally:
            await node.close()

    return asyncio.run(go())


def run_verb(folder: Path, mode: str, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """The command line of the product on one hostile node; its peak memory in bytes."""
    node = {
        "name": "spark-1",
        "transport": "local",
        "python": program(folder, mode),
        "root": str(folder / "root"),
    }
    (folder / "cluster.yaml").write_text(yaml.safe_dump({**KEYS, "nodes": [node]}))
    argv = [
        sys.executable,
        "-m",
        "orchestrator",
        *words,
        "--profile",
        "lab",
        "--cluster",
        str(folder / "cluster.yaml"),
    ]
    meter = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
    meter += (
        "sys.stderr.write(f'\\n{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}'); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", meter, *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done, int(done.stderr.rsplit("\n", 1)[1]) * 1024


# escape sequences -------------------------------------------------------------------------------------------------


def test_escapes_reach_neither_terminal_nor_log(tmp_path: Path) -> None:
    done, _ = run_verb(tmp_path, "escape", "stop", "--json")
    assert done.returncode == 3
    assert "red" in done.stderr, "the words themselves are shown"
    for place in (done.stdout, done.stderr, (tmp_path / ".sparkyard" / "events.jsonl").read_text()):
        for evil in ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x7f", "\x07"):
            assert evil not in place
    assert "owned" in (tmp_path / ".sparkyard" / "events.jsonl").read_text()


def test_a_profile_with_an_escape_is_refused_by_key(tmp_path: Path) -> None:
    text = (ROOT / "profiles" / "lab.yaml").read_text()
    path = tmp_path / "evil.yaml"
    path.write_text(text.replace("evidence: none", 'evidence: "\\e[2Jbooted by everybody"'))
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path))
    assert f"{path}: evidence: holds the control character U+001B" in str(caught.value)
    path.write_text(yaml.safe_dump({**KEYS, "nodes": [{"name": "a", "root": "/x\x9by"}]}))
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    assert "nodes.0.root" in str(caught.value)


def test_one_line_of_json_reads_back_and_is_safe_to_print() -> None:
    value = {"a\x9b": [ESCAPES, "\ud800", "ü · 語", 1, None, True]}
    line = json_line(value)
    assert json.loads(line) == value
    assert not UNSAFE.search(line)
    assert "ü · 語" in line
    line.encode()
    assert not UNSAFE.search(json.dumps(plain(value), ensure_ascii=False).replace("\\n", ""))


def test_a_recording_that_somebody_sent_is_made_harmless(tmp_path: Path) -> None:
    line = {"schema": "sparkyard/event/v1", "unix_s": 1.0, "event": "Said", "level": "note", "text": ESCAPES}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    ((_, said),), _ = replay.read(tmp_path / "events.jsonl")
    assert isinstance(said, Said)
    assert "red" in said.text
    assert not UNSAFE.search(said.text)


# what an agent says -----------------------------------------------------------------------------------------------


def test_a_flood_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    node = agent(tmp_path, program(tmp_path, "flood"))

    async def go() -> Reply:
        stream = node.ask(Ask("facts"), timeout_s=60)
        await anext(stream)
        while node._channel is not None and not node._channel.ended:
            await asyncio.sleep(0.1)  # the reader is slow, the agent is not
        heard = [message async for message in stream]
        await node.close()
        assert isinstance(heard[-1], Reply)
        return heard[-1]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    failure = asyncio.run(go()).failure
    assert failure is not None
    assert f"over {WAITING_MAX_BYTES:,} bytes" in failure.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < MEMORY_MAX_BYTES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"id": NUMBER, "ok": true, "value": {"x": NaN}}\n', "not finite"),
        ('{"id": NUMBER, "ok": true, "value": {"x": 1e999}}\n', "not finite"),
        ('{"id": NUMBER, "ok": true, "value": {"x": ' + "9" * 4000 + "}}\n", "beyond 64 bits"),
        ('{"id": NUMBER, "ok": true, "value": {"x": ' + "9" * 9000 + "}}\n", "not a message"),
        ("[" * 5000 + "\n", "not a message"),
        ('{"id": NUMBER, "ok": true, "value": ' + '{"x":' * 99 + "1" + "}" * 99 + "}\n", "nested more than"),
        ('{"id": NUMBER, "ok": false, "error": {"kind": ["x"], "message": 5, "evidence": 7}}\n', "5"),
        ('{"id": NUMBER, "ok": true, "value": 5}\n', "not an answer"),
        ("\x00\x01\udfff\n", "not a message"),
    ],
)
def test_an_answer_that_no_agent_gives(tmp_path: Path, text: str, words: str) -> None:
    failure = hear(agent(tmp_path, program(tmp_path, "raw", text))).failure
    assert failure is not None
    assert words in failure.message


def test_half_a_surrogate_becomes_a_sign_that_files_can_hold(tmp_path: Path) -> None:
    text = '{"id": NUMBER, "ok": true, "value": {"\\ud800": "\\udfff\\u001b[2J"}}\n'
    assert hear(agent(tmp_path, program(tmp_path, "raw", text))).value == {"\ufffd": "\ufffd·[2J"}


def test_names_of_evidence_are_ours_alone(tmp_path: Path) -> None:
    evil = {"../../evil": ["x"], "/tmp/evil": ["x"], "engine.log": ["fine"]}
    value = {"ranks": [{"rank": 0, "generation": 1, "logs": evil, "documents": {"../evil.json": {}}}]}

    class Lying:
        name = "spark-1"

        async def ask(self, _: Ask, **__: float) -> AsyncIterator[Reply]:
            yield Reply(value)

        async def close(self) -> None:
            """Nothing is open."""

    folder = asyncio.run(evidence.save({"spark-1": Lying()}, "lab", tmp_path / "below", "test"))
    written = {path.relative_to(tmp_path).name for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"about.json", "engine.log", "node", "kernel.log", "memory.json"}
    assert (folder / "rank-0" / "engine.log").read_text() == "fine\n"


# archives ---------------------------------------------------------------------------------------------------------


def zipped(*entries: tuple[str, int, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, kind, content in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            info.external_attr = (kind | 0o644) << 16
            with warnings.catch_warnings(action="ignore"):  # a name that stands twice is what we want
                archive.writestr(info, content)
    return buffer.getvalue()


PLAIN = ("sparkyard_engine/__init__.py", stat.S_IFREG, b"")
EVIL = {
    "up": zipped(PLAIN, ("../../escaped", stat.S_IFREG, b"x")),
    "inside up": zipped(PLAIN, ("a/../../../escaped", stat.S_IFREG, b"x")),
    "absolute": zipped(PLAIN, ("/tmp/escaped", stat.S_IFREG, b"x")),
    "backslash": zipped(PLAIN, ("..\\escaped", stat.S_IFREG, b"x")),
    "link": zipped(PLAIN, ("link", stat.S_IFLNK, b"/etc")),
    "below a file": zipped(PLAIN, (PLAIN[0] + "/x", stat.S_IFREG, b"x")),
    "twice": zipped(PLAIN, PLAIN),
    "folder": zipped(PLAIN, ("folder/", stat.S_IFREG, b"")),
    "many": zipped(*((f"f{number}", stat.S_IFREG, b"") for number in range(5000))),
    "no archive": b"PK\x03\x04 and nothing else",
}


def test_an_archive_that_leaves_its_folder_is_not_unpacked(tmp_path: Path) -> None:
    node, digests = agent(tmp_path), {name: hashlib.sha256(data).hexdigest() for name, data in EVIL.items()}
    puts = [
        ("PutBlob", {"digest": digests[name], "data": base64.b64encode(data).decode()})
        for name, data in EVIL.items()
    ]
    installs = [("InstallEngine", {"digest": digest}) for digest in digests.values()]
    answers = ask(node, *puts, *installs)
    assert not [answer.failure for answer in answers[: len(puts)] if answer.failure]
    for name, answer in zip(EVIL, answers[len(puts) :], strict=True):
        assert answer.failure is not None, name
        assert answer.failure.kind == "failed", (name, answer.failure)
    assert list((tmp_path / "root" / "engine").iterdir()) == []
    assert not list(tmp_path.rglob("*escaped*"))
    assert not Path("/tmp/escaped").exists()


# the checkpoint ---------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "checkpoint", LAYOUT, VOCAB)
    return tmp_path / "checkpoint"


def test_a_link_that_leaves_the_exported_folder(tmp_path: Path, checkpoint: Path) -> None:
    shard = min(checkpoint.glob("*.safetensors"))
    elsewhere = shard.rename(tmp_path / shard.name)
    shard.symlink_to(elsewhere)
    index = hashlib.sha256((checkpoint / "model.safetensors.index.json").read_bytes()).hexdigest()
    attach = {"mode": "own", "path": str(checkpoint), "source": "spark-1"}
    prove = {"index_sha256": index, "seed": 1, "blocks": 4}
    facts, attached, proven = ask(
        agent(tmp_path),
        ("facts", {"checkpoint": str(checkpoint)}),
        ("AttachCheckpoint", attach),
        ("ProveCheckpoint", prove),
    )
    (problem,) = facts.value["checkpoint"]["problems"]
    assert f"a link to {elsewhere}, outside of what is shared ({checkpoint})" in problem
    assert attached.failure is None
    assert proven.failure is not None
    assert "outside of what is shared" in proven.failure.message


def test_links_of_a_cache_stay_inside_and_are_fine(tmp_path: Path, checkpoint: Path) -> None:
    repository = tmp_path / "models--a--b"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "r1"
    snapshot.mkdir(parents=True)
    for file in checkpoint.iterdir():
        (snapshot / file.name).symlink_to(
            Path("../../blobs") / file.rename(repository / "blobs" / file.name).name
        )
    (facts,) = ask(agent(tmp_path), ("facts", {"checkpoint": str(snapshot)}))
    assert facts.value["checkpoint"]["problems"] == []


def test_a_header_of_2_to_the_63_bytes(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = min(checkpoint.glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.write((1 << 63).to_bytes(8, "little"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (facts,) = ask(agent(tmp_path), ("facts", {"checkpoint": str(checkpoint)}))
    assert [str(1 << 63) in problem for problem in facts.value["checkpoint"]["problems"]] == [True]
    with pytest.raises(ConfigError, match=str(1 << 63)):
        read_checkpoint(checkpoint)
    words = ["--checkpoint", str(checkpoint), "--revision", "r", "--tp", "3", "--rank", "0"]
    assert pack.main([*words, "--ownership", "balanced", "--output", str(tmp_path / "store")]) == 1
    assert slices.main([*words, *PADDED, "--output", str(tmp_path / "slices")]) == 1
    said = capsys.readouterr().err
    assert said.count(shard.name) == 2, said
    assert "Traceback" not in said
    assert tree.faults(checkpoint) is not None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < MEMORY_MAX_BYTES
