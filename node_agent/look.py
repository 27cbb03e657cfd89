"""The facts that every verb needs: host, memory, disk, ports, and what of ours is here."""

from __future__ import annotations

import getpass
import ipaddress
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from node_agent import checkpoint, jobs, lease, privileged, process
from node_agent import facts as readers
from node_agent.actions import containers, image, share
from node_agent.bounded import HungError, bounded
from node_agent.facts.source import Live, Recorded
from node_agent.files import read_json, tail
from node_agent.home import Home
from node_agent.image import addresses
from node_agent.nfs import client, server
from node_agent.records import inner, is_digest, number, text, whole

CHECKPOINT_TIMEOUT_S = 15.0
"""For index and headers, once: later looks read the sizes only. With the share's own bound less than a look has."""
HARDWARE_TIMEOUT_S = 20.0
"""Of all readers together; each has its own, shorter one."""
SLICES_MAX_BYTES = 256 << 20
"""Of a slice store's manifest: 70,000 tensors are 16 MB."""
RANK_LOG_LINES = 25
RANK_MARK = "SPARKYARD_RANK_SPEC"
"""Environment variable of a guard and of everything below it: the path of its rank spec."""
PHASES = ("starting", "joined", "loading", "kv", "graphs", "ready", "draining", "ended")
"""As in docs/formats.md."""
SHOWN_OF_BOOTS = (
    "deployment",
    "generation",
    "memory_before_bytes",
    "canary",
    "canary_texts",
    "smoke",
    "started_unix_s",
    "ready_unix_s",
    "proven",
    "profile",
    "timeline",
)
"""Keys of a boot record that every look tells; the others are asked for when they are needed."""
KEPT_RECORDS = 16
"""Boots and ranks that are reported, newest first; older ones are of no use to a decision."""

_SLICES: dict[tuple[str, int, int, int], tuple[str, dict[str, int]]] = {}


def facts(home: Home, args: dict[str, Any]) -> dict[str, Any]:
    """One consistent reading; of the hardware what ``args`` asks for."""
    desired = read_json(home.desired)
    own = args.get("checkpoint")
    # Beside the rest: a share whose server is gone takes its whole bound.
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(_checkpoint, home, own)
        engine = image.facts(home) if args.get("docker") else None
        wanted = args.get("hardware")
        measured = hardware(home, wanted, sudo=bool(args.get("sudo"))) if wanted else None
        shared, seen, place = reading.result()
    return {
        "node": home.node,
        "boot_id": process.boot_id(),
        "machine_id": _machine_id(),
        "agent": home.agent,
        "now_unix_s": time.time(),
        "host": {
            "hostname": platform.node(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "cpus": os.cpu_count() or 1,
            "user": getpass.getuser(),
        },
        "memory": memory(),
        "disks": [disk(home.root), *place, *_docker_disk(engine)],
        "listeners": listeners(),
        "desired": desired,
        "blobs": _names(home.blobs),
        "engines": _names(home.engines),
        "checkpoint": seen,
        "share": shared,
        "exported": server.facts(own) if own else [],
        "ports": addresses.facts(),
        "proof": read_json(home.share / "proof.json"),
        "stores": [*stores(home), *slice_stores(home)],
        "jobs": jobs.facts(home),
        "ranks": ranks(home),
        "boots": boots(home),
        "lease": lease.facts(home),
        "hardware": measured,
        "docker": engine,
    }


def _checkpoint(
    home: Home, own: str | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None, list[dict[str, Any]]]:
    """The share; the checkpoint as this node reads it, through the share or its ``own``; the own one's disk.

    Never hangs: an own one may lie on a server, too.
    """
    shared = share.facts(home)
    path = Path(own) if own else home.checkpoint if shared and not shared.get("problem") else None
    if path is None:
        return shared, None, []

    def read() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return checkpoint.facts(path), [disk(path)] if own else []

    try:
        key = ("checkpoint", str(path), client.mount_id(home))
        return shared, *bounded(key, read, CHECKPOINT_TIMEOUT_S)
    except HungError:
        why = f"its files are not read within {CHECKPOINT_TIMEOUT_S:.0f} s"
        if own:
            return shared, {"path": str(path), "problems": [f"{path}: {why}"]}, []
        return {**(shared or {}), "problem": why}, None, []


def hardware(home: Home, wanted: Any = True, *, sudo: bool = False) -> dict[str, Any]:
    """The facts named in the list ``wanted``, or all that the doctor reads for anything else.

    In the lab, the machine's own hardware is replaced by a recording.
    """
    recorded = Recorded.load(str(home.recorded)) if home.recorded else None
    live = Live(own=str(home.root), sudo=sudo or privileged.agreed())
    only = [str(name) for name in wanted] if isinstance(wanted, list) else []
    return readers.collect(live, recorded, timeout_s=HARDWARE_TIMEOUT_S, only=only)


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def memory() -> dict[str, int]:
    """MemTotal and MemAvailable, bytes."""
    values = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return {"total_bytes": values["MemTotal"], "available_bytes": values["MemAvailable"]}


def disk(path: Path) -> dict[str, Any]:
    """Size and free space (for an ordinary user) of the filesystem that holds ``path``."""
    here = path
    while not here.exists():
        here = here.parent
    status = os.statvfs(here)
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(" ")
        point = fields[1].replace("\\040", " ")
        if (str(here) + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, fields[2]
    return {
        "path": str(path),
        "filesystem": kind,
        "total_bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
        "device": here.stat().st_dev,
    }


def _docker_disk(engine: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Where images lie; the folder itself is closed to an ordinary user, its filesystem is not."""
    root = (engine or {}).get("root")
    try:
        return [disk(Path(root))] if root else []
    except OSError:
        return []


def listeners() -> list[dict[str, Any]]:
    """Listening TCP ports; the owner where this user may see it."""
    inodes: dict[str, tuple[int, str]] = {}
    found: dict[tuple[int, str], str] = {}
    for name, family in (("tcp", 4), ("tcp6", 6)):
        try:
            lines = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].rsplit(":", 1)
                found[int(port, 16), _address(address, family)] = fields[9]
    wanted = set(found.values())
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                for handle in os.scandir(f"/proc/{entry}/fd"):
                    target = os.readlink(handle.path)
                    if target.startswith("socket:[") and target[8:-1] in wanted:
                        name = (
                            Path(f"/proc/{entry}/comm").read_text(encoding="utf-8", errors="replace").strip()
                        )
                        inodes.setdefault(target[8:-1], (int(entry), name))
            except OSError:
                continue
    return [
        {
            "port": port,
            "address": address,
            "pid": inodes.get(inode, (None, None))[0],
            "process": inodes.get(inode, (None, None))[1],
        }
        for (port, address), inode in sorted(found.items())
    ][:1024]


def _address(text: str, family: int) -> str:
    raw = bytes.fromhex(text)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return str(ipaddress.IPv4Address(words) if family == 4 else ipaddress.IPv6Address(words))


def _names(folder: Path) -> list[str]:
    """Entries whose name is a digest: whole by construction, since they get that name last."""
    if not folder.is_dir():
        return []
    return sorted(name for name in os.listdir(folder) if is_digest(name))


def stores(home: Home) -> list[dict[str, Any]]:
    """Packed stores; complete when the manifest, which is written last, matches the sizes of the files."""
    found = []
    for name in _names(home.packs):
        folder = home.packs / name
        manifest = read_json(folder / "manifest.json")
        complete, total = False, 0
        if manifest is not None:
            try:
                files = {entry["file"]: int(entry["bytes"]) for entry in manifest["layers"]}
                complete = manifest.get("store_id") == name and all(
                    (folder / file).stat().st_size == size for file, size in files.items()
                )
                total = sum(files.values())
            except (OSError, KeyError, TypeError, ValueError):
                complete = False
        if not complete:  # what an unfinished run has taken of the disk
            total = sum(entry.stat().st_blocks * 512 for entry in os.scandir(folder) if entry.is_file())
        found.append(
            {
                "store": name,
                "path": str(folder),
                "complete": complete,
                "bytes": total,
            }
        )
    return found


def slice_stores(home: Home) -> list[dict[str, Any]]:
    """Slice stores. A folder appears whole, so one with a manifest was finished; the files' sizes are compared too."""
    found = []
    for name in _names(home.slices):
        folder = home.slices / name
        complete, total = False, 0
        try:
            store, sizes = _slice_files(folder / "manifest.json")
            complete = store == name and all(
                (folder / file).stat().st_size == size for file, size in sizes.items()
            )
            total = sum(sizes.values())
        except (OSError, KeyError, TypeError, ValueError, AttributeError):
            complete = False
        entry = {"store": name, "kind": "slices", "path": str(folder), "complete": complete, "bytes": total}
        found.append(entry)
    return found


def _slice_files(path: Path) -> tuple[str, dict[str, int]]:
    """Id and file sizes of a manifest, read once for each of its changes: it lists every tensor of the checkpoint."""
    seen = path.stat()
    key = (str(path), seen.st_ino, seen.st_size, seen.st_mtime_ns)
    known = _SLICES.get(key)
    if known is None:
        manifest = read_json(path, SLICES_MAX_BYTES) or {}
        known = str(manifest.get("id")), {str(file): int(size) for file, size in manifest["files"].items()}
        _SLICES[key] = known
    return known


def ranks(home: Home) -> list[dict[str, Any]]:
    """Ranks of the newest starts, alive or ended."""
    found = []
    running = process.marked(RANK_MARK)
    contained: set[tuple[str, int, int]] | None = None
    folders = (
        sorted(home.ranks.iterdir(), key=lambda path: path.stat().st_mtime) if home.ranks.is_dir() else []
    )
    for folder in folders[-KEPT_RECORDS:]:
        spec = read_json(folder / "spec.json")
        body, status = inner(spec, "body"), read_json(folder / "status.json") or {}
        name, generation, rank = text(body, "deployment"), whole(body, "generation"), whole(body, "rank")
        if (
            spec is None
            or not name
            or generation is None
            or rank is None
            or not is_digest(spec.get("identity"))
        ):
            continue  # damaged, or not yet whole: whatever runs there is found by its mark or its label
        if spec.get("image"):
            contained = contained if contained is not None else contained_ranks(home)
            alive, leftover = containers.key(body) in contained, []
        else:
            alive = process.alive(folder / "pid.json") is not None
            leftover = running.get(str(folder / "rank.json"), [])
        ended = inner(status, "ended")
        reason = ""
        if not alive and leftover:
            reason = f"lost: the guard is gone, {len(leftover)} processes of the engine still run"
        elif not alive:
            reason = f"{text(ended, 'reason', 'lost')}: {text(ended, 'detail', 'the guard is gone without a word')}"
        proof = inner(status, "proof")
        store = inner(proof, "engram").get("store_id")
        planned = Path(text(inner(inner(body, "plugin"), "engram"), "store")).name
        phase = text(status, "phase", "starting")
        found.append(
            {
                "deployment": name,
                "generation": generation,
                "rank": rank,
                "spec": spec["identity"],
                "engine": text(spec, "engine"),
                "image": text(spec, "image"),
                "alive": alive or bool(leftover),
                "phase": (phase if phase in PHASES else "starting") if alive else "ended",
                "gate_open": (folder / "gate-open").exists(),
                "ended": reason[:2000],
                "last_log_unix_s": number(status, "last_log_unix_s"),
                "log_tail": tail(folder / "engine.log", RANK_LOG_LINES)
                or tail(folder / "guard.out", RANK_LOG_LINES),
                "memory_low_water_bytes": whole(status, "memory_low_water_bytes"),
                "kv_tokens": whole(status, "kv_tokens"),
                "kv_tokens_asked": whole(status, "kv_tokens_asked"),
                "since_unix_s": number(spec, "started_unix_s") or 0.0,
                "store": planned if is_digest(planned) else None,
                "proven_store": store if is_digest(store) else None,
                "padded": whole(proof, "padded"),
                "weights_from": text(inner(proof, "weights"), "from"),
                "weights_note": text(inner(proof, "weights"), "note", limit=2000),
                "rows_read": whole(inner(status, "engram"), "rows_requested"),
            }
        )
    return found


def contained_ranks(home: Home) -> set[tuple[str, int, int]]:
    """Ranks whose container runs. An engine that does not answer says nothing of its ranks: the look fails."""
    return {known["key"] for known in containers.states(home) if known["running"]}


def boots(home: Home) -> list[dict[str, Any]]:
    """Boot records, the newest last."""
    paths = (
        sorted(home.boots.glob("*.json"), key=lambda path: path.stat().st_mtime)
        if home.boots.is_dir()
        else []
    )
    found = [record for path in paths[-KEPT_RECORDS:] if (record := read_json(path)) is not None]
    return [{key: record[key] for key in SHOWN_OF_BOOTS if key in record} for record in found]
