"""Reads the `.env` of the existing start.sh recipe and says what becomes of each of its settings. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

MAX_LINES = 2000
SECRET = re.compile(r"PASS|TOKEN|SECRET|API_KEY", re.IGNORECASE)
ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w{0,80})=(.*)", re.DOTALL)

LOOKED_UP = "looked up on each node at every start; a fixed value is wrong on some node or after a reboot"
FLAGS = {
    "CONTEXT_LENGTH": "--context-length",
    "MEM_FRACTION_STATIC": "--mem-fraction-static",
    "CHUNKED_PREFILL_SIZE": "--chunked-prefill-size",
    "MAX_RUNNING_REQUESTS": "--max-running-requests",
    "MAX_TOTAL_TOKENS": "--max-total-tokens",
    "EP_SIZE": "--ep-size",
    "SPEC_ALGO": "--speculative-algorithm",
    "DSPARK_BLOCK_SIZE": "--speculative-dspark-block-size",
}
OTHER = {
    "IB_HCA": LOOKED_UP,
    "NCCL_IB_HCA": LOOKED_UP,
    "NCCL_IB_GID_INDEX": LOOKED_UP,
    "GLOO_SOCKET_IFNAME": LOOKED_UP,
    "NCCL_SOCKET_IFNAME": LOOKED_UP,
    "PORT": "ports.api in the profile",
    "DIST_PORT": "ports.rendezvous in the profile",
    "HF_REVISION": "model.revision in the profile pins it",
    "OFFLOAD_MODE": "engram.mode in the profile: the tables stay on the NVMe",
    "EXPECTED_SHARDS": "the checkpoint's own index says how many shards there are",
    "READY_TIMEOUT": "deadlines.ready_s in the profile",
    "FORCE": "there is no such switch: what blocks a start is named, and can be ignored by its name",
}
NUMBERED = re.compile(r"WORKER_?(\d{1,2})_(IP|HOST)")


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one setting: where it went, or why it was not carried over."""

    name: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Imported:
    """A cluster as data for `cluster.yaml`, what came from where, and what is wrong with the file."""

    cluster: dict[str, Any]
    carried: tuple[Fate, ...]
    left: tuple[Fate, ...]
    problems: tuple[str, ...]


def parse(text: str) -> tuple[dict[str, str], list[str]]:
    """Assignments of a shell file without expansion, and what is wrong with its other lines, by line number."""
    values: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.replace("\r", "").split("\n")[:MAX_LINES], 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = ASSIGNMENT.fullmatch(stripped)
        if not found:
            problems.append(f"line {number}: not an assignment: {stripped[:60]!r}")
            continue
        try:
            parts = shlex.split(found.group(2), comments=True)
        except ValueError as error:
            problems.append(f"line {number}: {found.group(1)}: {error}")
            continue
        if len(parts) > 1:
            problems.append(f"line {number}: {found.group(1)}: a value with spaces needs quotes")
            continue
        values[found.group(1)] = parts[0] if parts else ""
    return values, problems


def _list(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,]+", text.strip()) if part]


def _workers(values: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Addresses and host names of the workers; from the lists, or from numbered pairs."""
    addresses, hosts = _list(values.get("WORKER_IPS", "")), _list(values.get("WORKER_HOSTS", ""))
    numbered = sorted({int(found.group(1)) for name in values if (found := NUMBERED.fullmatch(name))})
    if not addresses and numbered:
        for number in numbered:
            address = values.get(f"WORKER{number}_IP") or values.get(f"WORKER_{number}_IP") or ""
            host = values.get(f"WORKER{number}_HOST") or values.get(f"WORKER_{number}_HOST") or address
            addresses.append(address)
            hosts.append(host)
    return addresses, hosts


def _node_name(host: str, index: int) -> str:
    name = host.partition(".")[0].lower()
    return (
        name
        if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) and not name.isdecimal()
        else f"spark-{index}"
    )


def import_env(text: str, *, home: str) -> Imported:
    """Turn a recipe's `.env` into a cluster file.

    Args:
        text: the file.
        home: home folder of the account that runs the recipe, for `~`.
    """
    values, problems = parse(text)
    addresses, hosts = _workers(values)
    hosts = hosts or addresses
    if not addresses:
        problems.append("WORKER_IPS: no worker is named")
    if len(hosts) != len(addresses):
        problems.append(f"WORKER_HOSTS has {len(hosts)} names and WORKER_IPS {len(addresses)} addresses")
    wanted = values.get("NNODES") or values.get("TP_SIZE")
    if wanted and wanted.isdecimal() and int(wanted) != len(addresses) + 1:
        problems.append(f"NNODES or TP_SIZE is {wanted}, but the file names {len(addresses) + 1} nodes")
    head = values.get("HEAD_IP", "")
    if not head:
        problems.append("HEAD_IP: missing")
    user = values.get("WORKER_USER", "")
    key = _expanded(values.get("SSH_IDENTITY", ""), home)
    root = f"/home/{user}/sparkyard" if user and user != "root" else f"{home}/sparkyard"
    nodes: list[dict[str, Any]] = [
        {"name": "spark-1", "transport": "local", "fabric_address": head, "root": f"{home}/sparkyard"}
    ]
    for index, (address, host) in enumerate(zip(addresses, hosts, strict=False), 2):
        node: dict[str, Any] = {
            "name": _node_name(host, index),
            "address": host,
            "fabric_address": address,
            "root": root,
        }
        if user:
            node["user"] = user
        if key:
            node["key"] = key
        nodes.append(node)
    cluster: dict[str, Any] = {
        "schema": "sparkyard/cluster/v1",
        "topology": "triangle" if len(nodes) == 3 else "switch",
        "head": "spark-1",
        "nodes": nodes,
    }
    if values.get("MODEL_DIR"):
        cluster["checkpoint"] = {"node": "spark-1", "path": _expanded(values["MODEL_DIR"], home)}
    return Imported(cluster, *_fates(values), problems=tuple(problems))


def _expanded(path: str, home: str) -> str:
    path = path.replace("${HOME}", home).replace("$HOME", home)
    return str(PurePosixPath(home) / path[2:]) if path.startswith("~/") else path


def _fates(values: Mapping[str, str]) -> tuple[tuple[Fate, ...], tuple[Fate, ...]]:
    targets = {
        "HEAD_IP": "nodes.spark-1.fabric_address",
        "WORKER_IPS": "nodes.*.fabric_address",
        "WORKER_HOSTS": "nodes.*.address",
        "WORKER_USER": "nodes.*.user",
        "SSH_IDENTITY": "nodes.*.key",
        "MODEL_DIR": "checkpoint.path",
        "TP_SIZE": "the number of nodes; choose the profile by it",
        "NNODES": "the number of nodes",
    }
    carried, left = [], []
    for name, value in values.items():
        if name in targets or NUMBERED.fullmatch(name):
            carried.append(Fate(name, value, targets.get(name, "nodes.*")))
        elif SECRET.search(name):
            left.append(Fate(name, "(secret)", "secrets are never stored; enroll asks for a password once"))
        elif name in FLAGS:
            left.append(Fate(name, value, f"a setting of the profile: {FLAGS[name]}"))
        elif name in OTHER:
            left.append(Fate(name, value, OTHER[name]))
        elif name.startswith("DSV41_"):
            left.append(
                Fate(
                    name,
                    value,
                    "a switch of that recipe's own patches; sparkyard's plug-in has settings of its own",
                )
            )
        else:
            left.append(Fate(name, value, "unknown here"))
    return tuple(carried), tuple(left)
