"""The systemd unit of the monitor. Pure: text from paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RESTART_S = 10
STOP_TIMEOUT_S = 120
"""The monitor ends after its running steps; a step that stops a rank takes up to a minute."""

_AROUND_RANKS = (
    # ranks that the agent on this node starts belong to the node, not to the monitor: they must outlive it
    "KillMode=process",
    "LockPersonality=yes",
    "UMask=0077",
)
_BESIDE_RANKS = (
    "KillMode=mixed",
    "LockPersonality=yes",
    "MemoryDenyWriteExecute=yes",
    "NoNewPrivileges=yes",
    "PrivateTmp=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHome=read-only",
    "ProtectHostname=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectSystem=strict",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "SystemCallArchitectures=native",
    "UMask=0077",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """What the unit starts. `system`: a unit of the system, run as `user`; else one of the user's own manager.

    `around_ranks`: this node's agent is started by the monitor itself (transport `local`), so that ranks begin their
    life below the unit; what confines the unit would confine them.
    """

    python: Path
    checkout: Path
    cluster_file: Path
    state: Path
    profile: str
    deployment: str
    user: str
    system: bool
    around_ranks: bool
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """File name."""
        return f"sparkyard-monitor-{self.deployment}.service"

    def text(self) -> str:
        """The whole file."""
        words = [
            str(self.python),
            "-m",
            "orchestrator",
            "monitor",
            "--cluster",
            str(self.cluster_file),
            "--profile",
            self.profile,
            *self.options,
        ]
        service = [
            "Type=exec",
            f"WorkingDirectory={_path(self.checkout)}",
            f"ExecStart={' '.join(quoted(word) for word in words)}",
            "Restart=always",
            f"RestartSec={RESTART_S}",
            # 130: stopped by a signal, as asked
            "SuccessExitStatus=130",
            f"TimeoutStopSec={STOP_TIMEOUT_S}",
            "Environment=PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1",
            *([f"User={self.user}"] if self.system else []),
            *(_AROUND_RANKS if self.around_ranks else _BESIDE_RANKS),
            *([] if self.around_ranks else [f"ReadWritePaths={quoted(str(self.state))}"]),
        ]
        target = "multi-user.target" if self.system else "default.target"
        after = ["After=network-online.target", "Wants=network-online.target"] if self.system else []
        return "\n".join(
            [
                "# Written by `sparkyard monitor --install`.",
                "[Unit]",
                f"Description=sparkyard monitor of {self.deployment}",
                *after,
                "StartLimitIntervalSec=0",
                "",
                "[Service]",
                *service,
                "",
                "[Install]",
                f"WantedBy={target}",
                "",
            ]
        )


def quoted(word: str) -> str:
    """One word of ExecStart: systemd reads %, $, quotes and backslashes (systemd.service(5), systemd.unit(5))."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if text == "" or any(sign in text for sign in " \t'\"\\;") else text


def _path(path: Path) -> str:
    return str(path).replace("%", "%%")
