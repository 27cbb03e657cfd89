"""Images: which are here, offer one to the other nodes, get one from them, remove what is superseded."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from node_agent import jobs, process
from node_agent.docker import ASK_TIMEOUT_S, docker, present
from node_agent.files import read_json, write_json
from node_agent.home import Home
from node_agent.image import bases, identity, kernels, serve
from node_agent.wire import Refused, Report

SERVE_JOB = "image-serve"
PULL_JOB = "image-pull"
REPOSITORY = "sparkyard/engine"
"""Every image of ours has a tag in this repository: what `prune` may remove."""
POLL_S = 0.3
SPACE_MARGIN_BYTES = 256 << 20
"""On top of the image's own size: the engine's records, and rounding to blocks."""
PULL_SPACE_FACTOR = 2
"""The engine keeps a layer's download beside its unpacked files until that layer is done; layers overlap."""


def images() -> list[identity.Image]:
    """All images of this engine. Refused when the engine does not answer."""
    ids = docker("image", "ls", "--all", "--quiet", "--no-trunc", timeout_s=ASK_TIMEOUT_S).split()
    if not ids:
        return []
    text = docker("image", "inspect", *sorted(set(ids)), timeout_s=ASK_TIMEOUT_S)
    try:
        return identity.parse_all(text)
    except ValueError as error:
        raise Refused(f"docker image inspect: {error}", kind="protocol") from None


def facts(home: Home) -> dict[str, Any] | None:
    """The engine's release and store, and the images that carry our label; None without a Docker client."""
    if not present():
        return None
    try:
        info = json.loads(docker("info", "--format", "{{json .}}", timeout_s=ASK_TIMEOUT_S))
        ours = [image for image in images() if image.content]
    except (Refused, ValueError) as error:
        return {"problem": str(error)[:2000]}
    store = "containerd" if identity.uses_containerd_store(info) else str(info.get("Driver", ""))
    root = str(info.get("DockerRootDir") or "/")
    return {
        "problem": "",
        "version": str(info.get("ServerVersion", "")),
        "store": store,
        "root": root,
        "free_bytes": _free(Path(root)),
        "offered": _offered(home),
        "caches": kernels.facts(home.root),
        "images": [
            {
                "content": image.content,
                "platform": image.platform,
                "rootfs": image.rootfs,
                "config": image.config,
                "kernels": image.kernels,
                "tags": list(image.tags)[:20],
                "size_bytes": image.size_bytes,
            }
            for image in ours
        ],
    }


def build(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Build the image from the installed engine package, once; it carries the digest of its inputs as a label."""
    context = home.engines / args["engine"]
    recipe = context / "Dockerfile"
    if not recipe.is_file():
        raise Refused(
            f"{recipe} is missing: the engine package {args['engine'][:12]} has no recipe of an image"
        )
    base = _base(home, args)
    labels = {
        identity.CONTENT_LABEL: args["content"],
        "sparkyard.engine": args["engine"],
        "sparkyard.base": base,
        identity.KERNELS_LABEL: kernels.key(context, base),
    }
    argv = ["build", "--quiet", "--network", "host", "--file", str(recipe)]
    argv += ["--build-arg", f"BASE_IMAGE={args['base']}"]
    argv += ["--platform", args["platform"]] if args["platform"] else []
    for name, value in labels.items():
        argv += ["--label", f"{name}={value}"]
    argv += ["--tag", f"{REPOSITORY}:{args['content'][:12]}", str(context)]
    return {"id": docker(*argv, timeout_s=float(args["bound_s"])).strip(), "base": base}


def _base(home: Home, args: dict[str, Any]) -> str:
    """Digest of the base image, pulled when it is not here, and held against `images.lock`."""
    reference = str(args["base"])
    if not reference:
        raise Refused(
            "the profile names no base image (engine.image): a CUDA devel image, or one with its own SGLang"
        )
    try:
        text = docker("image", "inspect", reference, timeout_s=ASK_TIMEOUT_S)
    except Refused:
        platform = ["--platform", args["platform"]] if args["platform"] else []
        docker("pull", "--quiet", *platform, reference, timeout_s=float(args["bound_s"]))
        text = docker("image", "inspect", reference, timeout_s=ASK_TIMEOUT_S)
    return bases.hold(home.root, reference, identity.parse_all(text)[0])


def start_serving(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Start the job that offers an image, unless it runs; done when the offer stands."""
    image = _wanted(args["content"])
    job = {
        "image": image.tags[0] if image.tags else image.id,
        "name": REPOSITORY,
        "platform": image.platform,
        "registry": str(home.root / "registry"),
        "size_bytes": image.size_bytes,
        "content": image.content,
        "rootfs": image.rootfs,
        "diffs": list(image.layers),
        **{key: args[key] for key in ("addresses", "port", "token", "readers", "step_bytes", "idle_s")},
    }
    if _running(home, SERVE_JOB) is None:
        serve.registry_path()
        # Layers that are stored already cost nothing; the bound is for the first time.
        _need(home.root, image.size_bytes, "the published copy of the image")
        _start(home, SERVE_JOB, args["spec"], job)
    _await(home, SERVE_JOB, serve.OFFER, float(args["bound_s"]), report)
    return {}


def offer(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """The offer that stands, with the token that opens it for this run. Refused when there is none.

    The token is in no facts and on no command line: only in the order of the job, mode 600, and in this answer.
    """
    found = read_json(home.jobs / SERVE_JOB / serve.OFFER)
    order = _order(home, SERVE_JOB)
    if found is None or _running(home, SERVE_JOB) is None or order.get("content") != args["content"]:
        raise Refused(f"image {args['content'][:12]} is not offered here; run build again")
    known = ("token", "port", "content", "rootfs", "platform", "diffs")
    return {**found, **{key: order[key] for key in known}}


def _offered(home: Home) -> str | None:
    """Content label of the image that is offered now."""
    if _running(home, SERVE_JOB) is None or not (home.jobs / SERVE_JOB / serve.OFFER).exists():
        return None
    return str(_order(home, SERVE_JOB).get("content") or "") or None


def pull(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Start the job that gets an image, or join the one that runs; returns when the image is here and verified."""
    if _running(home, PULL_JOB) is None:
        offer = args["offer"]
        layers = [tuple(layer) for layer in offer["layers"]]
        missing = sum(size for _, size in layers[_present(offer["diffs"]) :])
        root = Path(
            json.loads(docker("info", "--format", "{{json .DockerRootDir}}", timeout_s=ASK_TIMEOUT_S))
        )
        _need(root, PULL_SPACE_FACTOR * missing if missing else 0, "the image's missing layers")
        job = {
            "node": home.node,
            "name": REPOSITORY,
            "tag": f"{REPOSITORY}:{offer['content'][:12]}",
            "missing_bytes": missing,
            **{key: offer[key] for key in ("manifests", "config", "content", "rootfs", "platform", "token")},
            **{key: args[key] for key in ("sources", "addresses", "port", "readers", "idle_s")},
        }
        _start(home, PULL_JOB, args["spec"], job)
    return _await(home, PULL_JOB, "result.json", float(args["bound_s"]), report)


def _present(diffs: list[str]) -> int:
    return identity.common_prefix(tuple(diffs), images())


def _wanted(content: str) -> identity.Image:
    for image in images():
        if image.content == content:
            return image
    raise Refused(f"no image with the content label {content[:12]} is on this node; run build")


def _free(path: Path) -> int:
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _need(place: Path, size: int, what: str) -> None:
    free = _free(place)
    if size and free < size + SPACE_MARGIN_BYTES:
        raise Refused(
            f"{place}: {free:,} bytes free, {size + SPACE_MARGIN_BYTES:,} needed for {what}; "
            "make room, for example with prune, and run again"
        )


def _order_file(home: Home, job: str) -> Path:
    return home.root / "fanout" / f"{job}.json"


def _order(home: Home, job: str) -> dict[str, Any]:
    return read_json(_order_file(home, job)) or {}


def _start(home: Home, job: str, spec: str, body: dict[str, Any]) -> None:
    write_json(_order_file(home, job), body)
    argv = [sys.executable, "-I", sys.argv[0], job, str(_order_file(home, job)), str(home.jobs / job)]
    jobs.start(home, job, job, spec, argv, {})


def _running(home: Home, job: str) -> int | None:
    return process.alive(home.jobs / job / "pid.json")


def _await(home: Home, job: str, name: str, bound_s: float, report: Report) -> dict[str, Any]:
    """The file ``name`` of the job once it is written. Refused when the job ends without it."""
    folder = home.jobs / job
    deadline = time.monotonic() + bound_s
    while time.monotonic() < deadline:
        alive = _running(home, job) is not None
        result = read_json(folder / name)
        if result is not None:
            return result
        status = read_json(folder / "status.json") or {}
        if status.get("state") == "failed" or not alive:
            known = next((entry for entry in jobs.facts(home) if entry["id"] == job), {})
            words = str(status.get("error") or known.get("error") or "it ended without a word")
            raise Refused(words, evidence=list(known.get("log_tail") or []))
        counts = {key: status.get(key) for key in ("done", "total", "unit", "note")}
        report({key: value for key, value in counts.items() if value is not None})
        time.sleep(POLL_S)
    raise Refused(
        f"{job} is not done after {bound_s:.0f} s; it goes on, run again to join it", kind="timeout"
    )


def prune(home: Home, args: dict[str, Any], report: Report) -> dict[str, Any]:
    """Remove images of ours but ``keep``, their partial steps, the published copy, dangling build cache, and what was
    compiled and tuned for images that are gone.

    With ``dry`` nothing changes: the answer says what would go and how large it is.
    """
    gone, total, stay = [], 0, set()
    for image in images():
        ours = [tag for tag in image.tags if tag.startswith((f"{REPOSITORY}:", "sparkyard-partial:"))]
        if ours and image.content not in args["keep"]:
            gone.append({"what": ", ".join(ours), "bytes": image.size_bytes})
            total += image.size_bytes
            if not args["dry"]:
                docker("rmi", *ours, timeout_s=300)
        elif image.kernels:
            stay.add(image.kernels)
    for cache in kernels.facts(home.root) if stay else ():
        if cache["key"] not in stay:
            folder = kernels.folder(home.root, cache["key"])
            gone.append({"what": str(folder), "bytes": cache["bytes"]})
            total += cache["bytes"]
            if not args["dry"]:
                shutil.rmtree(folder, ignore_errors=True)
    registry = home.root / "registry"
    if registry.is_dir() and _running(home, SERVE_JOB) is None:
        size = sum(file.stat().st_size for file in registry.rglob("*") if file.is_file())
        gone.append({"what": str(registry), "bytes": size})
        total += size
        if not args["dry"]:
            shutil.rmtree(registry)
    layers = _build_cache()
    if layers:
        gone.append({"what": "build cache", "bytes": layers})
        total += layers
        if not args["dry"]:
            docker("builder", "prune", "--force", timeout_s=300)
    return {"items": gone, "bytes": total}


def _build_cache() -> int:
    text = docker("system", "df", "--format", "{{json .}}", timeout_s=120)
    for line in text.splitlines():
        entry = json.loads(line)
        if entry.get("Type") == "Build Cache":
            return size_bytes(str(entry.get("Reclaimable", "0B")))
    return 0


def size_bytes(text: str) -> int:
    """`1.076GB (100%)` as bytes; decimal units, as Docker prints them. 0 for anything else."""
    word = text.split(" ", 1)[0]
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1)):
        if word.endswith(unit):
            try:
                return int(float(word[: -len(unit)]) * factor)
            except ValueError:
                return 0
    return 0
