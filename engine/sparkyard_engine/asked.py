"""What a rank spec asks of the plug-in, together with what the checkpoint says of itself. No SGLang in
here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sparkyard_engine import padding
from sparkyard_engine.engram import manifest as manifests
from sparkyard_engine.engram.format import Identity
from sparkyard_engine.engram.ownership import Ownership
from sparkyard_engine.engram.reader import Backend
from sparkyard_engine.files import read_json
from sparkyard_engine.rankspec import RankSpec
from sparkyard_engine.slices.manifest import Identity as SliceIdentity
from sparkyard_engine.source import Slices, is_draft

INDEX = "model.safetensors.index.json"
INDEX_LIMIT_BYTES = 256 << 20
CONFIG_LIMIT_BYTES = 16 << 20
SETTINGS_FILE = "settings.json"
ONE_EXPERT_GROUP = "1"  # slices hold every expert's rows and columns of a rank: --ep-size 1


class RefusedError(Exception):
    """This rank must not serve; the text names what was found, what was asked, and the remedy."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Engram rows from a packed store."""

    store: Path
    identity: Identity
    backend: Backend
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that the plug-in has to bring about in this rank.

    to_pad, draft_to_pad: tensors of the main model and of the draft that must be padded; heads, groups: after padding;
    disk None: tables stay in memory; slices None: weights come from the checkpoint.
    """

    rank: int
    tp: int
    directory: Path
    device: str
    architecture: str
    to_pad: int
    draft_to_pad: int
    engram_layers: tuple[int, ...]
    heads: int
    groups: int
    plan: padding.Plan
    disk: Disk | None
    slices: Slices | None
    speculative: bool
    settings: Mapping[str, Any]

    @property
    def prefetches(self) -> bool:
        """Rows from disk are read as soon as their ids are known."""
        return self.disk is not None and bool(self.settings.get("engram_prefetch"))

    @property
    def looks_ahead(self) -> bool:
        """The next prefill chunk's rows are read into the cache while this one computes."""
        return self.disk is not None and bool(self.settings.get("engram_look_ahead"))

    @property
    def mode(self) -> str:
        """As in the rank spec and the proof."""
        return "memory" if self.disk is None else "disk"


def asked(spec: RankSpec) -> Asked:
    """Reads the checkpoint's config.json and index beside the spec. Raises RefusedError."""
    checkpoint = Path(_option(spec.argv, "--model-path") or _refuse("argv: --model-path is missing"))
    config = _config(checkpoint)
    engram, settings = _object(spec.plugin, "engram"), _object(spec.plugin, "settings")
    known = known_settings()
    if unknown := sorted(set(settings) - set(known)):
        raise RefusedError(f"plugin.settings: {', '.join(unknown)}: unknown; known are {', '.join(known)}")
    shapes = _object(spec.plugin, "padding")
    heads, groups = _whole(config, "num_attention_heads"), _whole(config, "o_groups")
    padded_heads = _whole(shapes, "num_attention_heads") if shapes else heads
    padded_groups = _whole(shapes, "o_groups") if shapes else groups
    try:
        placement = padding.place(
            heads=heads, groups=groups, padded_heads=padded_heads, padded_groups=padded_groups, tp=spec.tp
        )
    except padding.PaddingError as error:
        raise RefusedError(f"plugin.padding: {error}") from error
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures):
        raise RefusedError(f"{checkpoint / 'config.json'}: architectures is missing")
    plan = padding.Plan(padding.rules(), placement)
    padded = [name for name in _index(checkpoint)["weight_map"] if plan.pads(name) is not None]
    to_pad = sum(not is_draft(name) for name in padded)
    if placement.is_padded and not to_pad:
        raise RefusedError(f"{checkpoint / INDEX}: no tensor has a name that padding applies to")
    return Asked(
        rank=spec.rank,
        tp=spec.tp,
        directory=spec.directory,
        device=_option(spec.argv, "--device") or "cuda",
        architecture=str(architectures[0]),
        to_pad=to_pad,
        draft_to_pad=len(padded) - to_pad,
        engram_layers=tuple(int(layer) for layer in config.get("engram_layer_ids", ())),
        heads=padded_heads,
        groups=padded_groups,
        plan=plan,
        disk=_disk(spec, engram, settings, checkpoint),
        slices=_slices(spec, checkpoint, shapes),
        speculative=_option(spec.argv, "--speculative-algorithm") is not None,
        settings=settings,
    )


def known_settings() -> tuple[str, ...]:
    """Settings that the plug-in obeys (`data/settings.json`). Any other name is refused: it would be set in vain."""
    text = resources.files("sparkyard_engine").joinpath("data", SETTINGS_FILE).read_text("utf-8")
    return tuple(setting["name"] for setting in json.loads(text)["settings"])


def _slices(spec: RankSpec, checkpoint: Path, shapes: Mapping[str, Any]) -> Slices | None:
    given = _object(spec.plugin, "slices")
    if not given:
        return None
    if (ranks := _option(spec.argv, "--ep-size") or ONE_EXPERT_GROUP) != ONE_EXPERT_GROUP:
        raise RefusedError(f"plugin.slices: made for --ep-size 1, argv has {ranks}")
    digest = hashlib.sha256((checkpoint / INDEX).read_bytes()).hexdigest()
    store = Path(str(given.get("store") or _refuse("plugin.slices.store is missing")))
    revision = str(given.get("revision") or _refuse("plugin.slices.revision is missing"))
    padded = {key: _whole(shapes, key) for key in ("num_attention_heads", "o_groups")} if shapes else {}
    return Slices(store, SliceIdentity(revision, digest, spec.tp, spec.rank, padded))


def _disk(
    spec: RankSpec, engram: Mapping[str, Any], settings: Mapping[str, Any], checkpoint: Path
) -> Disk | None:
    mode = engram.get("mode")
    if mode == "memory":
        return None
    if mode != "disk":
        raise RefusedError(f"plugin.engram.mode: expected disk or memory, found {mode!r}")
    store = Path(str(engram.get("store") or _refuse("plugin.engram.store: mode disk needs a store")))
    try:
        ownership = Ownership(str(engram.get("ownership")))
        backend = Backend(str(settings.get("engram_backend", Backend.AUTO)))
    except ValueError as error:
        raise RefusedError(f"plugin.engram: {error}") from error
    cache_bytes = settings.get("engram_cache_bytes", 0)
    if not isinstance(cache_bytes, int) or isinstance(cache_bytes, bool) or cache_bytes < 0:
        raise RefusedError(f"plugin.settings.engram_cache_bytes: expected bytes, found {cache_bytes!r}")
    if settings.get("engram_look_ahead") and not cache_bytes:
        raise RefusedError(
            "plugin.settings.engram_look_ahead: needs engram_cache_bytes, enough for a prefill chunk"
        )
    digest = hashlib.sha256((checkpoint / INDEX).read_bytes()).hexdigest()
    # The revision is the one thing that the rank cannot know better than the store: the store id in the
    # folder's name, given by the spec, covers it.
    found = manifests.load(store).identity
    identity = Identity(found.revision, digest, spec.tp, spec.rank, ownership)
    manifests.check_identity(found, identity, str(store / manifests.FILE_NAME))
    if len(store.name) == len(found.store_id) and store.name != found.store_id:
        raise RefusedError(f"{store}: its manifest belongs to store {found.store_id}")
    return Disk(store, identity, backend, cache_bytes)


def _config(checkpoint: Path) -> Mapping[str, Any]:
    config = read_json(checkpoint / "config.json", CONFIG_LIMIT_BYTES)
    if config is None:
        raise RefusedError(f"{checkpoint / 'config.json'}: missing, or no JSON object")
    inner = config.get("text_config")
    return {**inner, **config} if isinstance(inner, dict) else config


def _index(checkpoint: Path) -> Mapping[str, Any]:
    index = read_json(checkpoint / INDEX, INDEX_LIMIT_BYTES)
    if index is None or not isinstance(index.get("weight_map"), dict):
        raise RefusedError(f"{checkpoint / INDEX}: missing, or no safetensors index")
    return index


def _option(argv: tuple[str, ...], name: str) -> str | None:
    for place, word in enumerate(argv):
        if word == name and place + 1 < len(argv):
            return argv[place + 1]
        if word.startswith(name + "="):
            return word.partition("=")[2]
    return None


def _object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key) or {}
    if not isinstance(found, dict):
        raise RefusedError(f"plugin.{key}: expected an object, found {found!r}")
    return found


def _whole(value: Mapping[str, Any], key: str) -> int:
    found = value.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise RefusedError(f"{key}: expected a whole number above 0, found {found!r}")
    return found


def _refuse(text: str) -> Any:
    raise RefusedError(text)
