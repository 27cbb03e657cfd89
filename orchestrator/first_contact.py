"""`init` and `enroll`: find nodes and checkpoints, write `cluster.yaml`, bring our key to the nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from orchestrator import envfile
from orchestrator.errors import ConfigError
from orchestrator.model.cluster import Cluster
from orchestrator.remote.enroll import EnrollError, enroll

HOSTS = Path("/etc/hosts")
MAX_FILE_BYTES = 1 << 20
BROWSE_TIMEOUT_S = 5.0
MAX_DEPTH = 3
MAX_FOLDERS = 5000
KEYS = ".sparkyard/keys"  # beside the cluster file, ignored by git
INDEX = "model.safetensors.index.json"
NODE = re.compile(
    r"(?:(?P<name>[^=@:]+)=)?(?:(?P<user>[^=@:]+)@)?(?P<address>[^=@:\s]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?"
)
SPARK = re.compile(r"spark|gx10|gb10|dgx", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that may be a node."""

    name: str
    address: str
    source: str


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint on this machine."""

    path: str
    layout: str
    revision: str
    shards: int
    missing: int
    """Shards that the index names and that are not there."""

    @property
    def complete(self) -> bool:
        return self.missing == 0 and self.shards > 0


def parse_hosts(text: str) -> list[Candidate]:
    """Lines of /etc/hosts whose names look like a Spark; loopback is left out."""
    found = []
    for line in text.splitlines():
        parts = line.partition("#")[0].split()
        if len(parts) < 2 or parts[0].startswith(("127.", "::1", "fe80", "ff0")):
            continue
        names = [name for name in parts[1:] if SPARK.search(name)]
        if names:
            found.append(Candidate(names[0], parts[0], "/etc/hosts"))
    return found


def parse_browse(text: str) -> list[Candidate]:
    """`avahi-browse -ptr _ssh._tcp`: resolved lines, IPv4 only."""
    found = []
    for line in text.splitlines():
        parts = line.split(";")
        if len(parts) > 8 and parts[0] == "=" and parts[2] == "IPv4" and SPARK.search(parts[6]):
            found.append(Candidate(parts[6].removesuffix(".local"), parts[7], "mDNS"))
    return found


def candidates(hosts: Path = HOSTS) -> list[Candidate]:
    """What /etc/hosts and mDNS offer; each address once."""
    found = []
    try:
        found = parse_hosts(hosts.read_text("utf-8", "replace")[:MAX_FILE_BYTES])
    except OSError:
        found = []
    command = ["avahi-browse", "-ptr", "_ssh._tcp"]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=BROWSE_TIMEOUT_S, check=False)
        found += parse_browse(ran.stdout.decode("utf-8", "replace"))
    except (OSError, subprocess.TimeoutExpired):
        pass  # no mDNS here: names and addresses can still be given
    unique: dict[str, Candidate] = {}
    for item in found:
        unique.setdefault(item.address, item)
    return list(unique.values())


def default_roots() -> list[Path]:
    """Where checkpoints usually lie."""
    home = Path.home()
    cache = Path(os.environ.get("HF_HOME", home / ".cache" / "huggingface"))
    return [cache / "hub", home / "models", Path("/models"), Path("/srv/models"), Path("/data/models")]


def checkpoints(roots: list[Path], model: str = "DeepSeek-V4.1-Flash") -> list[Found]:
    """Checkpoints of `model` below some folders: plain ones, and snapshots of a Hugging Face cache."""
    found: dict[str, Found] = {}
    for root in roots:
        for folder in _folders(root):
            place = folder / INDEX
            if place.is_file() and model.lower() in str(folder).lower():
                found.setdefault(str(folder.resolve()), _checkpoint(folder, place))
    return sorted(found.values(), key=lambda item: (item.missing, item.path))


def _folders(root: Path) -> list[Path]:
    """The folder and those below it, a few levels deep. A cache keeps its snapshots three levels down."""
    todo: list[tuple[Path, int]] = [(root, 0)]
    seen: list[Path] = []
    while todo and len(seen) < MAX_FOLDERS:
        folder, depth = todo.pop()
        try:
            below = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        except OSError:
            continue
        seen.append(folder)
        if depth < MAX_DEPTH:
            todo += [(path, depth + 1) for path in below if path.name not in ("blobs", "refs")]
    return seen


def _checkpoint(folder: Path, index: Path) -> Found:
    names: set[str] = set()
    try:
        data = json.loads(index.read_text("utf-8"))
        names = {str(name) for name in data.get("weight_map", {}).values()}
    except (OSError, ValueError, AttributeError):
        names = set()
    here = {name for name in names if (folder / name).is_file()}
    cached = folder.parent.name == "snapshots"
    revision = folder.name if cached else ""
    return Found(
        str(folder.resolve()), "cache" if cached else "plain", revision, len(names), len(names) - len(here)
    )


def _home(account: str) -> str:
    """Where an account's folder usually is; of none: ours."""
    return str(Path.home()) if not account else "/root" if account == "root" else f"/home/{account}"


def cluster_data(nodes: list[str], *, user: str, root: str | None, checkpoint: str | None) -> dict[str, Any]:
    """A cluster file for nodes given as `[name=][user@]address[:port]`; the first is the head.

    Without `root` each node's folder is in the home of its account. ConfigError for a text that is no node.
    """
    listed = []
    for index, text in enumerate(nodes, 1):
        given = NODE.fullmatch(text)
        if given is None:
            raise ConfigError([f"{text[:80]!r}: expected [NAME=][USER@]ADDRESS[:PORT]"])
        address = given["address"].strip("[]")
        is_number = address[:1].isdigit() or ":" in address
        name = given["name"] or (f"spark-{index}" if is_number else address.partition(".")[0].lower())
        account = given["user"] or user
        node: dict[str, Any] = {
            "name": name,
            "address": address,
            "root": root or f"{_home(account)}/sparkyard",
        }
        if given["port"]:
            node["port"] = int(given["port"])
        if account:
            node["user"] = account
        listed.append(node)
    data: dict[str, Any] = {
        "schema": "sparkyard/cluster/v1",
        "topology": "triangle" if len(listed) == 3 else "switch",
        "head": listed[0]["name"],
        "nodes": listed,
    }
    if checkpoint:
        data["checkpoint"] = {"node": listed[0]["name"], "path": checkpoint}
    return data


def checked(data: dict[str, Any], where: str) -> Cluster:
    """ConfigError with every fault of the data."""
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        places = [
            f"{where}: {'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors()
        ]
        raise ConfigError(places) from error


def write(data: dict[str, Any], place: Path, *, force: bool) -> None:
    """Write the cluster file, mode 600: temporary name, fsync, rename. ConfigError when another one is there."""
    checked(data, str(place))
    if place.exists() and not force:
        if _read(place) == data:
            return
        raise ConfigError([f"{place}: exists already and says something else; --force replaces it"])
    text = "# Where the nodes are. Private: keep it out of version control.\n" + yaml.safe_dump(
        data, sort_keys=False
    )
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=place.parent, prefix=f".{place.name}.", delete=False
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(place)
    except OSError as error:
        raise ConfigError([f"{place}: cannot be written: {error.strerror}"]) from error


def from_env(source: Path) -> dict[str, Any]:
    """`init --import-env`: the cluster, and what became of each setting. ConfigError for an unusable file."""
    try:
        with source.open("rb") as file:
            text = file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError([f"{source}: {error.strerror}"]) from error
    found = envfile.import_env(text, home=str(Path.home()))
    if found.problems:
        raise ConfigError([f"{source}: {problem}" for problem in found.problems])
    checked(found.cluster, str(source))
    return {
        "schema": "sparkyard/init/v1",
        "cluster": found.cluster,
        "carried": [asdict(item) for item in found.carried],
        "not_carried": [asdict(item) for item in found.left],
    }


def survey(roots: list[Path]) -> dict[str, Any]:
    """`init` without nodes: what could be one, and which checkpoints are here. Nothing is written."""
    seen = checkpoints(roots)
    best = next((item for item in seen if item.complete), None)
    return {
        "schema": "sparkyard/init/v1",
        "candidates": [asdict(item) for item in candidates()],
        "checkpoints": [{**asdict(item), "complete": item.complete} for item in seen],
        "proposed_checkpoint": best.path if best else None,
    }


def prepare(
    nodes: list[str], import_env: Path | None, user: str, root: str | None, checkpoint: str | None
) -> dict[str, Any]:
    """What `init` is asked for: an import, a cluster of given nodes, or only a survey of what is here."""
    if import_env is not None:
        if nodes:
            raise ConfigError(["give nodes or --import-env, not both"])
        return from_env(import_env)
    found = survey(default_roots())
    if not nodes:
        return found
    chosen = checkpoint or found["proposed_checkpoint"]
    found["cluster"] = cluster_data(nodes, user=user, root=root, checkpoint=chosen)
    checked(found["cluster"], "init")
    return found


def enroll_all(
    place: Path,
    names: str | None,
    trust: Callable[[str, str], bool],
    ask_password: Callable[[str], str],
) -> dict[str, Any]:
    """Enroll every node that is reached by SSH; keys and host keys go into the cluster file, node by node."""
    data = _read(place)
    wanted = {name.strip() for name in names.split(",")} if names else None
    cluster = checked(data, str(place))
    unknown = sorted((wanted or set()) - {node.name for node in cluster.nodes})
    if unknown:
        raise ConfigError([f"--nodes: no node is called {', '.join(unknown)}"])
    done, failures = [], []
    for node, raw in zip(cluster.nodes, data["nodes"], strict=True):
        if node.transport != "ssh" or (wanted is not None and node.name not in wanted):
            continue
        try:
            found = enroll(node, keys=place.resolve().parent / KEYS, ask_password=ask_password, trust=trust)
        except EnrollError as error:
            failures.append({"node": node.name, "message": str(error)})
            continue
        raw |= {"key": found.key, "host_key": found.host_key}
        write(data, place, force=True)
        done.append(asdict(found))
    return {"schema": "sparkyard/enroll/v1", "enrolled": done, "failures": failures, "rights": []}


def _read(place: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(place.read_text("utf-8"))
    except OSError as error:
        raise ConfigError([f"{place}: {error.strerror}; ./start.sh init writes it"]) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"{place}: not YAML: {error}"]) from error
    if not isinstance(data, dict):
        raise ConfigError([f"{place}: not a cluster file"])
    return data
