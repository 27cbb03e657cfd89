"""Docker: version, storage, runtimes, device interface specs, containers and images."""

from __future__ import annotations

import json
from typing import Any

from node_agent.facts.reader import Reader
from node_agent.facts.source import Source, UnreadableError

INFO = ("docker", "info", "--format", "{{json .}}")
LIST = ("docker", "ps", "-aq", "--no-trunc")
IMAGES = ("docker", "images", "-q", "--no-trunc")
COMMAND_TIMEOUT_S = 5.0
MAX_CONTAINERS = 100
MAX_IMAGES = 100
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
ENVIRONMENT_PREFIXES = ("NCCL_", "GLOO_")  # nothing else: a container's environment may carry secrets


def _loaded(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{what}: not JSON: {str(error)[:100]}") from error


def _section(value: Any, key: str) -> dict[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def parse_info(text: str) -> dict[str, Any]:
    """`docker info` as JSON. Raises UnreadableError when it is not."""
    data = _loaded(text, "docker info")
    if not isinstance(data, dict):
        raise UnreadableError("docker info: not an object")
    status = data.get("DriverStatus") or []
    containerd = (
        any("io.containerd.snapshotter" in str(row) for row in status) if isinstance(status, list) else False
    )
    return {
        "version": str(data.get("ServerVersion", ""))[:60],
        "storage": str(data.get("Driver", ""))[:60],
        "store": "containerd" if containerd else "classic",
        "root": str(data.get("DockerRootDir", ""))[:500],
        "runtimes": sorted(str(name)[:60] for name in _section(data, "Runtimes"))[:20],
        "cgroup_version": str(data.get("CgroupVersion", ""))[:10],
        "warnings": [str(item)[:200] for item in data.get("Warnings") or []][:20],
    }


def parse_containers(text: str) -> list[dict[str, Any]]:
    """`docker inspect` of containers. Of the environment only NCCL's and Gloo's variables are kept."""
    data = _loaded(text, "docker inspect")
    found = []
    for item in data if isinstance(data, list) else []:
        state, host, config = _section(item, "State"), _section(item, "HostConfig"), _section(item, "Config")
        environment = {}
        for pair in config.get("Env") or []:
            name, equals, value = str(pair).partition("=")
            if equals and name.startswith(ENVIRONMENT_PREFIXES):
                environment[name[:80]] = value[:200]
        limits = {
            str(row.get("Name")): row.get("Hard")
            for row in host.get("Ulimits") or []
            if isinstance(row, dict)
        }
        devices = [
            str(row.get("PathOnHost", ""))[:200] for row in host.get("Devices") or [] if isinstance(row, dict)
        ]
        requests = host.get("DeviceRequests") or []
        memlock = limits.get("memlock")
        found.append(
            {
                "id": str(item.get("Id", ""))[:12],
                "name": str(item.get("Name", "")).lstrip("/")[:200],
                "image": str(config.get("Image", ""))[:300],
                "state": str(state.get("Status", ""))[:20],
                "exit_code": state.get("ExitCode") if isinstance(state.get("ExitCode"), int) else None,
                "restarts": item.get("RestartCount") if isinstance(item.get("RestartCount"), int) else 0,
                "gpu": bool(requests) or host.get("Runtime") == "nvidia",
                "privileged": host.get("Privileged") is True,
                "memlock": memlock if isinstance(memlock, int) else None,
                "devices": devices[:50],
                "environment": environment,
                "labels": {
                    str(key)[:100]: str(value)[:200]
                    for key, value in _section(config, "Labels").items()
                    if str(key).startswith("sparkyard")
                },
            }
        )
    return found[:MAX_CONTAINERS]


def parse_images(text: str) -> list[dict[str, Any]]:
    """`docker image inspect`."""
    data = _loaded(text, "docker image inspect")
    items = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    return [
        {
            "id": str(item.get("Id", ""))[:80],
            "tags": [str(tag)[:300] for tag in item.get("RepoTags") or []][:10],
            "architecture": str(item.get("Architecture", ""))[:20],
            "bytes": item["Size"] if isinstance(item.get("Size"), int) else 0,
        }
        for item in items[:MAX_IMAGES]
    ]


def read(source: Source) -> dict[str, Any] | None:
    """None where Docker is not installed. `reachable` is false without the right to ask; `error` says why."""
    specs = [f"{folder}/{name}" for folder in CDI_FOLDERS for name in source.names(folder)]
    shown = source.run(*INFO, timeout_s=COMMAND_TIMEOUT_S)
    if shown is None:
        return None
    complaint = shown.err.strip() or (shown.out.strip() if shown.status != 0 else "")
    if "permission denied" in complaint.lower():
        return {"reachable": False, "error": complaint[:300], "cdi": specs}
    try:
        info = parse_info(shown.out)
    except UnreadableError:
        return {"reachable": False, "error": complaint[:300] or "docker info gave no answer", "cdi": specs}
    if not info["version"]:
        return {
            "reachable": False,
            "error": complaint[:300] or "the Docker daemon does not run",
            "cdi": specs,
        }
    containers: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    listed = source.run(*LIST, timeout_s=COMMAND_TIMEOUT_S)
    if listed and listed.status == 0 and listed.out.split():
        ids = listed.out.split()[:MAX_CONTAINERS]
        inspected = source.run("docker", "inspect", *ids, timeout_s=COMMAND_TIMEOUT_S)
        containers = parse_containers(inspected.out) if inspected and inspected.out.strip() else []
    stored = source.run(*IMAGES, timeout_s=COMMAND_TIMEOUT_S)
    if stored and stored.status == 0 and stored.out.split():
        ids = list(dict.fromkeys(stored.out.split()))[:MAX_IMAGES]
        inspected = source.run("docker", "image", "inspect", *ids, timeout_s=COMMAND_TIMEOUT_S)
        images = parse_images(inspected.out) if inspected and inspected.out.strip() else []
    return {
        "reachable": True,
        "error": None,
        "cdi": specs,
        "containers": containers,
        "images": images,
        **info,
    }


READER = Reader("docker", read, hardware=False, timeout_s=5 * COMMAND_TIMEOUT_S)
