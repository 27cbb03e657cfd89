"""Firmware and over-the-air updates. Versions are only compared within one maker and product."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.checks.check import AC_DRAIN, FORUM, Check, E, Hit, Node, W, Yard, by_model, value, version
from orchestrator.checks.power import HOT_C
from orchestrator.model.finding import Confidence

PD_FLOOR = 0x507  # 0x1 and 0x500 are stale
HOT_EC = 0x0300  # fan curve of the 0x0300xxxx line ran hot on some units; others run it cool


def _number(text: str | None) -> tuple[int, ...]:
    """A version that can be ordered: hexadecimal as one number, dotted as several."""
    if text and text.lower().startswith("0x"):
        try:
            return (int(text[:20], 16),)
        except ValueError:
            return ()
    return version(text)


def _versions(node: Node) -> dict[str, str]:
    firmware = value(node.facts.firmware)
    return {item.name: item.version for item in firmware.devices if item.version} if firmware else {}


def parity(yard: Yard) -> Iterable[Hit]:
    for group in by_model(yard.seen):
        known = {node.name: _versions(node) for node in group if value(node.facts.firmware) is not None}
        behind: dict[str, list[str]] = {}
        for device in sorted({name for found in known.values() for name in found}):
            best = max((found[device] for found in known.values() if device in found), key=_number)
            for name, found in known.items():
                if device in found and _number(found[device]) < _number(best):
                    behind.setdefault(name, []).append(f"{device} {found[device]}, elsewhere {best}")
        for name, texts in behind.items():
            yield Hit("; ".join(texts)[:400], node=name)


def failed(node: Node) -> Iterable[Hit]:
    firmware = value(node.facts.firmware)
    if firmware is None:
        return
    texts = [*firmware.failures, *(f"{item.name}: {item.failed}" for item in firmware.devices if item.failed)]
    if texts:
        yield Hit(texts[0][:300], evidence="; ".join(texts[1:])[:300])


def power_delivery(node: Node) -> Iterable[Hit]:
    for name, text in _versions(node).items():
        if "PD" in name.split() or "power delivery" in name.lower():
            found = _number(text)
            if found and found[0] < PD_FLOOR:
                yield Hit(f"{name} {text}")


def controller(node: Node) -> Iterable[Hit]:
    hottest = max((zone.celsius for zone in value(node.facts.thermal) or ()), default=0.0)
    if hottest < HOT_C:
        return
    for name, text in _versions(node).items():
        found = _number(text)
        if "embedded controller" in name.lower() and found and found[0] >> 16 == HOT_EC:
            yield Hit(f"{name} {text} and {hottest:g} °C")


def ota_torn(node: Node) -> Iterable[Hit]:
    release = value(node.facts.release)
    if release is None:
        return
    if release.ota_score:
        yield Hit(f"torn score {release.ota_score}")
    elif release.half_installed:
        yield Hit(
            f"{len(release.half_installed)} packages half installed: {', '.join(release.half_installed[:5])}"
        )


def ota_version(yard: Yard) -> Iterable[Hit]:
    for group in by_model(yard.seen):
        found = {
            node.name: release.ota for node in group if (release := value(node.facts.release)) and release.ota
        }
        if len(set(found.values())) > 1:
            yield Hit(", ".join(f"{name} {text}" for name, text in found.items()))


CHECKS = (
    Check(
        "fw.parity",
        ("firmware", "dmi"),
        "the same firmware on nodes of one maker and product",
        "one is behind",
        W,
        f"fwupdmgr update on that node, then {AC_DRAIN}",
        f"{FORUM}369230 {FORUM}360591",
        whole=parity,
        needs_peers=True,
    ),
    Check(
        "fw.failed",
        ("firmware",),
        "no failed update",
        "`expected 0x00000507 and got 0x00000500`",
        E,
        f"install the stepping-stone version first, {AC_DRAIN}, then update again",
        f"{FORUM}363464",
        each=failed,
    ),
    Check(
        "fw.pd",
        ("firmware",),
        "USB-C PD firmware 0x507 or newer",
        "0x1 or 0x500: power and clock faults",
        W,
        f"fwupdmgr update, then {AC_DRAIN}",
        f"{FORUM}365116 {FORUM}371537",
        each=power_delivery,
    ),
    Check(
        "fw.ec",
        ("firmware", "thermal"),
        "EC firmware that keeps the zones cool",
        f"the 0x0300xxxx line with a zone at {HOT_C:g} °C or more",
        W,
        "install the EC version that the maker names as the cure (0x02004e18 for the units of the report)",
        f"{FORUM}377069 {FORUM}377044",
        each=controller,
        confidence=Confidence.MEDIUM,
    ),
    Check(
        "ota.torn",
        ("release",),
        "no update ended half way",
        "torn score above 0, or packages half installed",
        E,
        "finish the over-the-air update; dpkg --configure -a",
        f"{FORUM}373394 https://github.com/thatcooperguy/nvcheckup",
        each=ota_torn,
    ),
    Check(
        "ota.version",
        ("release", "dmi"),
        "the same OTA release on nodes of one model",
        "different ones",
        W,
        "bring them to one release",
        f"{FORUM}360591",
        whole=ota_version,
        needs_peers=True,
    ),
)
