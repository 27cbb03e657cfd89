"""Ranks as containers: found by label, never by name alone; stopped with a bound and a proof."""

from __future__ import annotations

import json
import os
import pkgutil
import stat
import time
from pathlib import Path
from typing import Any

from node_agent import checkpoint
from node_agent.docker import ASK_TIMEOUT_S, docker, lines
from node_agent.home import Home
from node_agent.image import kernels
from node_agent.image.identity import KERNELS_LABEL
from node_agent.wire import Refused

DEPLOYMENT, GENERATION, RANK, SPEC = (
    "sparkyard.deployment",
    "sparkyard.generation",
    "sparkyard.rank",
    "sparkyard.spec",
)
NODE = "sparkyard.node"
"""Two nodes may share one engine on a test machine; on a fleet it says whose container this is."""
JOB = "sparkyard.job"
RUN_TIMEOUT_S = 120.0
STOP_MARGIN_S = 30.0
"""On top of the grace: the engine kills, unmounts and records."""
PROOF_TIMEOUT_S = 10.0
NOFILE = 1_048_576
"""Eight ranks open that many: fleets died at the default of 1,024 (file descriptors of NCCL proxies)."""
STACK_BYTES = 64 << 20
"""As fleets run this model."""
SECCOMP = "data/seccomp.json"
"""In this package: the default of moby 20.10.24 (Apache-2.0), which still has io_uring, and later harmless calls."""
GPU_DRIVER = Path("/proc/driver/nvidia/version")
RDMA_DEVICES = Path("/dev/infiniband")


def run_arguments(
    labels: dict[str, str],
    image: str,
    folders: dict[str, bool],
    env: dict[str, str],
    *,
    gpu: bool,
    devices: tuple[str, ...],
    seccomp: str,
) -> list[str]:
    """Everything between `docker run` and the command. Pure.

    Args:
        folders: absolute path -> writable; each stands at the same path inside.
        gpu: the node has the NVIDIA driver.
        devices: the node's RDMA devices; nothing is privileged.
        seccomp: profile on the node: Docker's own default plus io_uring, which it leaves out since 25.0.
    """
    argv = ["--network", "host", "--ipc", "host", "--restart", "no", "--entrypoint", "python3"]
    argv += ["--ulimit", "memlock=-1", "--ulimit", f"nofile={NOFILE}:{NOFILE}", "--cap-add", "IPC_LOCK"]
    argv += ["--ulimit", f"stack={STACK_BYTES}:{STACK_BYTES}"]
    argv += ["--security-opt", "no-new-privileges", "--security-opt", f"seccomp={seccomp}"]
    argv += ["--log-opt", "max-size=16m", "--log-opt", "max-file=2"]
    argv += ["--gpus", "all"] if gpu else []
    argv += [word for device in devices for word in ("--device", device)]
    for name, value in sorted(labels.items()):
        argv += ["--label", f"{name}={value}"]
    for path, writable in sorted(folders.items()):
        argv += ["--mount", f"type=bind,source={path},target={path}{'' if writable else ',readonly'}"]
    for name, value in sorted(env.items()):
        argv += ["--env", f"{name}={value}"]
    return [*argv, image]


def start(home: Home, args: dict[str, Any], folder: Path, command: list[str], env: dict[str, str]) -> str:
    """Start a rank's container; its id. An ended one of the same rank is removed first, nothing else is touched."""
    labels = {
        DEPLOYMENT: args["deployment"],
        GENERATION: str(args["generation"]),
        RANK: str(args["rank"]),
        SPEC: args["spec"],
        NODE: home.node,
    }
    for known in states(home):
        if known["key"] == key(args) and not known["running"]:
            docker("rm", known["id"], timeout_s=ASK_TIMEOUT_S)
    name = f"sparkyard-{args['deployment']}-g{args['generation']}-r{args['rank']}-{home.node}"
    folders = {
        checkpoint_root(home): False,
        str(folder): True,
        str(home.packs): False,
        str(home.slices): False,
        **dict.fromkeys(secrets(args["body"]), False),
    }
    if library := (args["body"].get("nccl") or {}).get("library"):
        folders[str(library)] = False
    argv = arguments(home, labels, args["image"], folders, env)
    return docker("run", "--detach", "--name", name, *argv, *command, timeout_s=RUN_TIMEOUT_S).strip()


def secrets(body: dict[str, Any]) -> list[str]:
    """Files that the plug-in of this rank reads a secret from: shown to the container, their content never named.

    Refused when one is missing, which Docker and the engine would say in less clear words, or when others can read it.
    """
    path = str((body.get("plugin") or {}).get("settings", {}).get("api_key_file") or "")
    if path and not Path(path).is_file():
        raise Refused(f"{path} is not there: ports.api_key_file names the file with the API key on this node")
    if path and (mode := stat.S_IMODE(Path(path).stat().st_mode)) & 0o077:
        raise Refused(f"{path} has mode {mode:o}, others can read the API key; chmod 600 it")
    return [path] if path else []


def arguments(
    home: Home, labels: dict[str, str], content: str, folders: dict[str, bool], env: dict[str, str]
) -> list[str]:
    """Arguments for this node: its devices, its folders, the account that the agent runs under."""
    label = f'{{{{index .Config.Labels "{KERNELS_LABEL}"}}}}'
    name = f"sparkyard/engine:{content[:12]}"
    compiled = docker("image", "inspect", "--format", label, name, timeout_s=ASK_TIMEOUT_S).strip()
    cache = kernels.folder(home.root, compiled)
    for path in (cache, home.packs, home.slices):
        path.mkdir(parents=True, exist_ok=True)
    everything = {**folders, str(cache): True}
    # Compiled kernels and tuning results stay on the node between boots: HOME is where the libraries keep them.
    return engine_arguments(home, labels, content, everything, {**env, "HOME": str(cache)})


def account_arguments(uid: int, gid: int) -> list[str]:
    """Who the container's processes are. Pure.

    An ordinary account cannot use any of Docker's default capabilities, so none is in its reach (IPC_LOCK is added for
    all). Root keeps them: a checkpoint may belong to another account, and reading it takes one.
    """
    return ["--user", f"{uid}:{gid}", *(["--cap-drop", "ALL"] if uid != 0 else [])]


def engine_arguments(
    home: Home, labels: dict[str, str], content: str, folders: dict[str, bool], env: dict[str, str]
) -> list[str]:
    """The engine's image with this node's devices, under the account of the agent; these folders and no others."""
    user = account_arguments(os.getuid(), os.getgid())
    env = {"LANG": "C.UTF-8", **env}
    image = f"sparkyard/engine:{content[:12]}"
    devices = tuple(str(path) for name in ("uverbs*", "rdma_cm") for path in sorted(RDMA_DEVICES.glob(name)))
    return user + run_arguments(
        labels, image, folders, env, gpu=GPU_DRIVER.exists(), devices=devices, seccomp=_seccomp(home)
    )


def _seccomp(home: Home) -> str:
    """The profile's file on this node; written once, Docker's client reads it at every start."""
    content = pkgutil.get_data("node_agent", SECCOMP) or b""
    path = home.root / "seccomp.json"
    if not path.exists() or path.read_bytes() != content:
        temporary = path.with_name(f".seccomp.{os.getpid()}.tmp")
        temporary.write_bytes(content)
        temporary.replace(path)
    return str(path)


def checkpoint_folder(home: Home) -> str:
    """Where the checkpoint's files are: a container sees no link of ours. Refused when there is no checkpoint."""
    if not home.checkpoint.exists():
        raise Refused("this node does not reach the checkpoint; run share")
    return os.path.realpath(home.checkpoint)


def checkpoint_root(home: Home) -> str:
    """The folder to show to a container: a snapshot of a cache links to blobs beside it."""
    return checkpoint.shared_root(Path(checkpoint_folder(home)))


def key(args: dict[str, Any]) -> tuple[str, int, int]:
    """What a rank's container is found by."""
    return str(args["deployment"]), int(args["generation"]), int(args["rank"])


def states(home: Home) -> list[dict[str, Any]]:
    """Every rank's container of this node, running or ended."""
    found = []
    wanted = ["--filter", f"label={DEPLOYMENT}", "--filter", f"label={NODE}={home.node}"]
    text_ = docker("ps", "--all", "--no-trunc", *wanted, "--format", "{{json .}}", timeout_s=ASK_TIMEOUT_S)
    for line in lines(text_):
        labels = parse_labels(str(line.get("Labels", "")))
        try:
            name = labels[DEPLOYMENT], int(labels[GENERATION]), int(labels[RANK])
        except (KeyError, ValueError):
            continue
        running = str(line.get("State", "")) in {"running", "created", "restarting", "paused"}
        found.append({"key": name, "id": str(line.get("ID", "")), "running": running})
    return found


def parse_labels(text_: str) -> dict[str, str]:
    """`a=b,c=d` as `docker ps` prints labels. A comma inside a value ends it: none of ours has one."""
    return dict(word.split("=", 1) for word in text_.split(",") if "=" in word)


def stop(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """SIGTERM to the guard, SIGKILL after the grace, then the proof: not running, and its process is gone."""
    killed = 0
    for known in states(home):
        if known["key"] != key(args):
            continue
        if known["running"]:
            grace_s = int(args["grace_s"])
            pid = _pid(known["id"])
            docker("stop", "--time", str(grace_s), known["id"], timeout_s=grace_s + STOP_MARGIN_S)
            _prove_gone(known["id"], pid)
            killed += 1
    return {"killed_processes": killed}


def _pid(container: str) -> int:
    state = json.loads(docker("inspect", "--format", "{{json .State}}", container, timeout_s=ASK_TIMEOUT_S))
    return int(state.get("Pid") or 0)


def _prove_gone(container: str, pid: int) -> None:
    end = time.monotonic() + PROOF_TIMEOUT_S
    while time.monotonic() < end:
        state = json.loads(
            docker("inspect", "--format", "{{json .State}}", container, timeout_s=ASK_TIMEOUT_S)
        )
        if not state.get("Running") and (pid <= 0 or not Path(f"/proc/{pid}").exists()):
            return
        time.sleep(0.2)
    raise Refused(f"container {container[:12]} does not end: its process {pid} is still there")
