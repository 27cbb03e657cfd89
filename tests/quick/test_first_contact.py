"""init and enroll: found nodes and checkpoints, a recipe's .env taken over, a key brought to a real SSH server."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from orchestrator import envfile, first_contact
from orchestrator.cli import app
from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster

RECIPE = Path("tests/cases/env/recipe.env")
PASSWORD = "correct horse"


class Server(asyncssh.SSHServer):
    """Lets a password or a key in that stands in authorized_keys; runs commands with /bin/sh."""

    def __init__(self, keys: Path) -> None:
        self._keys = keys

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002 - asyncssh's signature
        return key.export_public_key("openssh").decode().split()[1] in self._keys.read_text()

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's signature
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:  # noqa: ARG002 - as above
        return password == PASSWORD


async def run_command(process: asyncssh.SSHServerProcess[bytes], home: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", process.command or "", cwd=home, stdin=-1, stdout=-1, stderr=-1
    )
    assert child.stdin is not None
    if "read" in (process.command or ""):
        child.stdin.write(await process.stdin.readline())
    child.stdin.close()
    out, error = await child.communicate()
    process.stdout.write(out)
    process.stderr.write(error)
    process.exit(child.returncode or 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    keys = home / ".ssh" / "authorized_keys"
    keys.touch()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    ports: list[int] = []
    stop = asyncio.Event()

    async def serve() -> None:
        listening = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=lambda: Server(keys),
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            authorized_client_keys=None,
            process_factory=lambda process: run_command(process, home),
            encoding=None,
        )
        ports.append(listening.get_port())
        ready.set()
        await stop.wait()
        listening.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10.0)
    yield ports[0], home
    loop.call_soon_threadsafe(stop.set)
    thread.join(10.0)


def yes(node: str, fingerprint: str) -> bool:
    return fingerprint.startswith("SHA256:")


def no(node: str, fingerprint: str) -> bool:
    return False


def right(prompt: str) -> str:
    return PASSWORD


def wrong(prompt: str) -> str:
    return "wrong"


def written(tmp_path: Path, port: int) -> Path:
    place = tmp_path / "cluster.yaml"
    data = first_contact.cluster_data(
        ["spark-1=127.0.0.1"], user="spark", root="/srv/sparkyard", checkpoint=None
    )
    data["nodes"][0]["port"] = port
    first_contact.write(data, place, force=False)
    return place


def test_enroll_brings_a_key_of_its_own_and_pins_the_host_key(
    server: tuple[int, Path], tmp_path: Path
) -> None:
    port, home = server
    place = written(tmp_path, port)
    asked: list[str] = []

    def password(prompt: str) -> str:
        asked.append(prompt)
        return PASSWORD

    data = first_contact.enroll_all(place, None, yes, password)
    assert data["failures"] == []
    assert asked == ["password of spark@127.0.0.1: "]
    assert data["enrolled"][0]["key_was_new"]
    node = Cluster.model_validate(yaml.safe_load(place.read_text())).nodes[0]
    assert node.host_key is not None
    assert node.host_key.startswith("ssh-ed25519 ")
    assert stat.S_IMODE(Path(str(node.key)).stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert len((home / ".ssh" / "authorized_keys").read_text().splitlines()) == 1
    again = first_contact.enroll_all(place, None, no, pytest.fail)
    assert again["failures"] == []
    assert not again["enrolled"][0]["key_was_new"]
    assert len((home / ".ssh" / "authorized_keys").read_text().splitlines()) == 1


def test_enroll_says_why_it_ended(server: tuple[int, Path], tmp_path: Path) -> None:
    port, home = server
    place = written(tmp_path, port)
    refused = first_contact.enroll_all(place, None, yes, wrong)
    assert "the password was refused" in refused["failures"][0]["message"]
    distrusted = first_contact.enroll_all(place, None, no, right)
    assert "was not accepted" in distrusted["failures"][0]["message"]
    data = yaml.safe_load(place.read_text())
    data["nodes"][0]["host_key"] = (
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    )
    first_contact.write(data, place, force=True)
    changed = first_contact.enroll_all(place, None, yes, right)
    assert "another one is pinned" in changed["failures"][0]["message"]
    data["nodes"][0] |= {"port": 1, "host_key": None}
    first_contact.write(data, place, force=True)
    silent = first_contact.enroll_all(place, None, yes, right)
    assert "does not answer" in silent["failures"][0]["message"]
    assert (home / ".ssh" / "authorized_keys").read_text() == ""


def test_a_recipes_env_becomes_a_cluster_file(tmp_path: Path) -> None:
    place = tmp_path / "cluster.yaml"
    command = ["init", "--import-env", str(RECIPE), "--cluster", str(place), "--json"]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    data = json.loads(ran.stdout)
    cluster = Cluster.model_validate(yaml.safe_load(place.read_text()))
    assert [(node.name, node.fabric, node.transport) for node in cluster.nodes] == [
        ("spark-1", "10.0.22.1", "local"),
        ("spark-b", "10.0.22.2", "ssh"),
        ("spark-c", "10.0.23.3", "ssh"),
    ]
    assert cluster.topology == "triangle"
    left = {item["name"]: item for item in data["not_carried"]}
    assert left["WORKER_PASS"]["value"] == "(secret)"
    assert "not kept" not in ran.stdout + place.read_text()
    assert "every start" in left["NCCL_IB_GID_INDEX"]["text"]
    assert left["CONTEXT_LENGTH"]["text"].endswith("--context-length")
    assert {"MODEL_DIR", "WORKER_IPS"} <= {item["name"] for item in data["carried"]}
    names = {*left, *(item["name"] for item in data["carried"])}
    assert names == set(envfile.parse(RECIPE.read_text())[0])
    assert CliRunner().invoke(app, command).exit_code == 0, "the same again is no fault"
    place.write_text(place.read_text().replace("10.0.22.2", "10.0.22.9"))
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "--force" in json.loads(again.stdout)["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "HEAD_IP: missing"),
        (
            "HEAD_IP=10.0.0.1\nWORKER_IPS=10.0.0.2 10.0.0.3\n",
            "line 2: WORKER_IPS: a value with spaces needs quotes",
        ),
        ("HEAD_IP=10.0.0.1\nWORKER_IPS=10.0.0.2\nNNODES=3\n", "NNODES or TP_SIZE is 3"),
        ("HEAD_IP=10.0.0.1\nWORKER_IPS='10.0.0.2\n", "No closing quotation"),
        ("HEAD_IP=10.0.0.1\nWORKER_IPS=10.0.0.2\nif true; then\n", "line 3: not an assignment"),
    ],
)
def test_a_wrong_env_file_is_refused_by_line(text: str, said: str, tmp_path: Path) -> None:
    place = tmp_path / "recipe.env"
    place.write_text(text)
    with pytest.raises(ConfigError, match=said):
        first_contact.from_env(place)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.text(max_size=300))
def test_any_text_is_an_answer(text: str) -> None:
    found = envfile.import_env(text, home="/home/spark")
    assert found.problems or found.cluster


def test_numbered_workers_are_understood() -> None:
    text = "HEAD_IP=10.0.0.1\nWORKER1_IP=10.0.0.2\nWORKER1_HOST=b\nWORKER2_IP=10.0.0.3\nWORKER2_HOST=c\n"
    found = envfile.import_env(text, home="/root")
    assert [node["name"] for node in found.cluster["nodes"]] == ["spark-1", "b", "c"]
    assert found.problems == ()


def test_checkpoints_are_found_in_both_layouts(tmp_path: Path) -> None:
    revision = "dba1be0a40aa45a94ad051997016db3960a90277"
    cached = tmp_path / "hub" / "models--deepseek-ai--DeepSeek-V4.1-Flash" / "snapshots" / revision
    plain = tmp_path / "models" / "DeepSeek-V4.1-Flash"
    for folder, shards in ((cached, 2), (plain, 1)):
        folder.mkdir(parents=True)
        names = {f"w{index}": f"model-{index}.safetensors" for index in range(2)}
        (folder / first_contact.INDEX).write_text(json.dumps({"weight_map": names}))
        for index in range(shards):
            (folder / f"model-{index}.safetensors").touch()
    found = first_contact.checkpoints([tmp_path / "hub", tmp_path / "models", tmp_path / "absent"])
    assert [(item.layout, item.revision, item.complete) for item in found] == [
        ("cache", revision, True),
        ("plain", "", False),
    ]


def test_nodes_are_given_with_their_own_account_and_port() -> None:
    texts = ["spark-a.lan", "b=jo@10.0.0.2:2222", "ann@10.0.0.3", "[fd00::4]:23", "10.0.0.5"]
    made = first_contact.cluster_data(texts, user="spark", root="/r", checkpoint=None)["nodes"]
    assert [(n["name"], n["address"], n.get("port"), n["user"]) for n in made] == [
        ("spark-a", "spark-a.lan", None, "spark"),
        ("b", "10.0.0.2", 2222, "jo"),
        ("spark-3", "10.0.0.3", None, "ann"),
        ("spark-4", "fd00::4", 23, "spark"),
        ("spark-5", "10.0.0.5", None, "spark"),
    ]
    homes = first_contact.cluster_data(
        ["jo@10.0.0.2", "root@10.0.0.3"], user="x", root=None, checkpoint=None
    )["nodes"]
    assert [node["root"] for node in homes] == ["/home/jo/sparkyard", "/root/sparkyard"]
    for text in ("", "a=", "a b", "a@b@c", "a:port", "=a", "a=b=c"):
        with pytest.raises(ConfigError, match=r"expected \[NAME=\]"):
            first_contact.cluster_data([text], user="", root="/r", checkpoint=None)


def test_hosts_and_mdns_offer_candidates() -> None:
    hosts = "127.0.0.1 localhost spark-0\n10.0.0.2 spark-b spark-b.lan # a node\n10.0.0.9 printer\n"
    assert [(item.name, item.address) for item in first_contact.parse_hosts(hosts)] == [
        ("spark-b", "10.0.0.2")
    ]
    browsed = (
        '=;enP7s7;IPv4;spark-c;_ssh._tcp;local;spark-c.local;10.0.0.3;22;"x"\n'
        "+;enP7s7;IPv4;spark-d;_ssh._tcp;local\n"
    )
    assert [(item.name, item.address) for item in first_contact.parse_browse(browsed)] == [
        ("spark-c", "10.0.0.3")
    ]
