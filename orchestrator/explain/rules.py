"""What failed boots and gangs write, and what that means. Data: a new symptom is one more entry and one more case.

Each text is one that SGLang, torch, NCCL, the kernel or our own guard writes. The order is the order of causes: what
stands higher explains what stands lower. `CONSEQUENCE` entries follow from something else and are the headline only
when nothing else was found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["cause", "slow path", "consequence"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause, the texts that show it, and what to do."""

    id: str
    title: str
    patterns: tuple[re.Pattern[str], ...]
    """Any of them in a line shows it."""
    remedy: str
    level: Level = "cause"
    beside: tuple[re.Pattern[str], ...] = field(default=())
    """When not empty: a line with one of these must be there, too."""
    unless: tuple[re.Pattern[str], ...] = field(default=())
    """A rank that wrote a line with one of these is left out: it shows the same for another reason."""


@dataclass(frozen=True, slots=True)
class SameRule:
    """Something that must be equal on every rank; `pattern` has it in its first group."""

    id: str
    title: str
    pattern: re.Pattern[str]
    remedy: str


def _texts(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


_ENOMEM = (
    r"ibv_reg_(dmabuf_)?mr(_iova2)?\b.*(Cannot allocate memory|ENOMEM)|Cannot allocate memory.*ibv_reg_mr"
)

RULES: tuple[Rule, ...] = (
    Rule(
        "memory_floor",
        "the guard ended the rank: memory fell below the floor",
        _texts(r"\bmemory_floor\b", r"MemAvailable was \d+ B, below the floor"),
        "lower the KV pool (--max-total-tokens) or end what else uses memory: sparkyard plan serve shows the ledger",
    ),
    Rule(
        "oom_killer",
        "the kernel's OOM killer ended a process",
        _texts(r"Out of memory: Killed process \d+", r"oom-kill:constraint=", r"oom_reaper: reaped process"),
        "find what took the memory (kernel.log lists it); the guard's floor should be above that point",
    ),
    Rule(
        "userspace_oom",
        "a user-space OOM daemon ended the engine",
        _texts(
            r"earlyoom.*SIG(KILL|TERM)",
            r"sending SIG(KILL|TERM) to process \d+.*(oom|mem avail)",
            r"dgx-anti-oom",
        ),
        "give it an exception for the engine, or a floor below the one of the profile; two guards kill twice",
    ),
    Rule(
        "nccl_enomem_kernel",
        "NCCL cannot register memory: this kernel reserves it for kexec handover",
        _texts(_ENOMEM),
        "boot with kho=off, or the kernel before 7.0.0-1019",
        beside=_texts(r"7\.0\.0-1019", r"CmaTotal:\s+0 kB", r"KHO:|kexec handover"),
    ),
    Rule(
        "nccl_enomem_modeset",
        "NCCL cannot register memory: nvidia-drm runs without modeset",
        _texts(_ENOMEM),
        "set nvidia-drm modeset=1 (/etc/modprobe.d) and reboot",
        beside=_texts(r"modeset=(0|N)\b", r"nvidia.peermem.*Invalid argument"),
    ),
    Rule(
        "memlock",
        "the engine may not lock enough memory for RDMA",
        _texts(
            r"ibv_create_(cq|qp).*Cannot allocate memory", r"(RLIMIT_MEMLOCK|memlock).*(limit|too low|exceed)"
        ),
        "memlock unlimited for the container (--ulimit memlock=-1)",
    ),
    Rule(
        "nccl_enomem",
        "NCCL cannot register memory with the network card",
        _texts(_ENOMEM),
        "sparkyard doctor: kernel version, nvidia-drm modeset and CMA decide it",
    ),
    Rule(
        "no_infiniband_device",
        "the engine has no access to the RDMA devices",
        _texts(r"Failed to open libibverbs", r"/dev/infiniband.*(No such file|denied)", r"no uverbs"),
        "give the container /dev/infiniband and install libibverbs in the image",
    ),
    Rule(
        "hca",
        "NCCL was told a network card that this node does not have",
        _texts(
            r"NET/IB\s*:\s*No device found",
            r"ncclInvalidUsage",
            r"invalid usage.*ncclCommInitRank",
            r"NCCL_IB_HCA.*(not found|no match)",
        ),
        "device names differ from node to node: look them up on each at every start (sparkyard doctor)",
    ),
    Rule(
        "gid",
        "the GID index does not fit: the queue pair cannot be set up",
        _texts(
            r"ibv_modify_qp failed.*(Invalid argument|No data available|Network is unreachable|Connection timed out)",
            r"ibv_query_gid.*fail",
            r"(GID|gid).{0,30}(invalid|not found|index \d+ .*does not)",
        ),
        "the index moves with reboots and addresses: do not pin NCCL_IB_GID_INDEX; check IPv4 on the link",
    ),
    Rule(
        "rdma_retry",
        "packets on a fast link are lost: MTU, cable or peer",
        _texts(
            r"Got completion from peer .*status=12",
            r"transport retry counter exceeded",
            r"vendor err 129",
        ),
        "sparkyard doctor --deep: MTU on both ends, ping with full-size frames, the cable's error counters",
    ),
    Rule(
        "port_in_use",
        "a port is taken",
        _texts(r"[Aa]ddress already in use", r"EADDRINUSE", r"\[Errno 98\]", r"errno: 98\b"),
        "an older rank or another program listens there: sparkyard status, ss -ltnp",
    ),
    Rule(
        "plugin_missing",
        "sparkyard's plug-in was not active in the engine",
        _texts(
            r"plugin_missing",
            r"(Failed to load|Error (while )?(loading|executing)) plugin",
            r"hook target .* (cannot|could not|does not)",
        ),
        "the engine's version and the plug-in's must fit: sparkyard build; the rank's log has the reason above",
    ),
    Rule(
        "engram_rows",
        "an Engram row or its store could not be proven right",
        _texts(
            r"[Ee]ngram.*(checksum|crc|CRC|digest|identity|manifest).*(differ|mismatch|wrong|not|fail)",
            r"(checksum|CRC-?32C?).*(row|block|page).*(differ|mismatch|wrong)",
            r"\b(StoreError|RowsError|EngramError)\b",
        ),
        "sparkyard pack checks the store and packs it again where it is wrong; look at the drive's health",
    ),
    Rule(
        "cuda_oom",
        "CUDA ran out of memory",
        _texts(
            r"CUDA out of memory",
            r"cudaErrorMemoryAllocation",
            r"CUDA error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
        ),
        "page cache counts as used on GB10: drop clean cache before the start, or lower the KV pool",
    ),
    Rule(
        "kv_none",
        "no memory is left for the KV pool",
        _texts(
            r"Not enough memory\. Please try to increase --mem-fraction-static", r"max_total_num_tokens=0\b"
        ),
        "sparkyard plan serve shows what takes it; --mem-fraction-static is of what is free after the weights",
    ),
    Rule(
        "unpadded",
        "the model's shapes do not divide by the number of ranks: the padding is not active",
        _texts(
            r"\d+ is not divisible by \d+",
            r"Attempted to load weight \(torch\.Size.*into parameter",
            r"start \(\d+\) \+ length \(\d+\) exceeds dimension size",
        ),
        "padding needs both the overrides of the profile and the plug-in; check proof.json of the rank",
    ),
    Rule(
        "architecture_unknown",
        "this engine does not know the model",
        _texts(r"Model architectures? .* (is|are) not supported", r"does not recognize this architecture"),
        "DeepSeek-V4.1 needs SGLang 0.5.21 or newer: sparkyard build",
    ),
    Rule(
        "checkpoint_broken",
        "a shard of the checkpoint is missing or cut",
        _texts(
            r"(HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|incomplete metadata)",
            r"No such file or directory.*\.safetensors",
            r"Error while deserializing header",
        ),
        "sparkyard verify compares every shard with its digest; copy the wrong ones again",
    ),
    Rule(
        "share_gone",
        "the shared checkpoint cannot be read",
        _texts(
            r"Stale file handle", r"nfs: server .* not responding", r"Transport endpoint is not connected"
        ),
        "sparkyard share mounts it again and proves it",
    ),
    Rule(
        "disk_full",
        "a disk or /dev/shm is full",
        _texts(r"No space left on device", r"\bENOSPC\b", r"Bus error.*(shm|shared memory)"),
        "sparkyard prune; for /dev/shm a larger --shm-size",
    ),
    Rule(
        "too_many_files",
        "too many open files",
        _texts(r"Too many open files", r"\bEMFILE\b"),
        "nofile 1048576 for the container: eight ranks need more than the default",
    ),
    Rule(
        "no_compiler",
        "the engine cannot compile its kernels",
        _texts(
            r"nvcc:? (command )?not found",
            r"CUDA_HOME environment variable is not set",
            r"ninja: (command )?not found",
        ),
        "the base image must be a devel image with nvcc and ninja",
    ),
    Rule(
        "compile_storm",
        "kernels were compiled by too many jobs at once",
        _texts(
            r"(cicc|ptxas|nvcc).*(Killed|died due to signal 9)",
            r"fatal error: Killed signal terminated program cc1plus",
        ),
        "MAX_JOBS=2, or kernels built into the image",
    ),
    Rule(
        "wrong_binary",
        "the image or its kernels are for another processor or GPU",
        _texts(
            r"[Ee]xec format error",
            r"no kernel image is available for execution",
            r"sm_121.* is not compatible",
        ),
        "GB10 is arm64 and sm_121: check the image's platform and the wheels in it",
    ),
    Rule(
        "driver",
        "driver and libraries do not fit",
        _texts(
            r"Driver/library version mismatch",
            r"CUDA driver version is insufficient",
            r"RmInitAdapter failed",
        ),
        "reboot after a driver update; sparkyard doctor compares the nodes",
    ),
    Rule(
        "xid",
        "the GPU reported a fault",
        _texts(r"NVRM: Xid \(PCI:[^)]*\): \d+"),
        "the number says which: sparkyard doctor; a fault that comes back after a power cycle is hardware",
    ),
    Rule(
        "garbage_collector_torch",
        "torch is not the version that this SGLang was built for",
        _texts(
            r"insert value must be an int64 tensor, got", r"undefined symbol: _ZN[0-9A-Za-z]*(c10|at|torch)"
        ),
        "install the torch version of the engine's lock: sparkyard build",
    ),
    Rule(
        "stopped",
        "processes of a rank are stopped",
        _texts(r'"stopped": [1-9]'),
        "SIGSTOP, a debugger or a frozen cgroup: nothing of the engine does that by itself; kill -CONT lets them go on",
    ),
    Rule(
        "guard_lost",
        "a rank's guard is gone without a word",
        _texts(r'"ended": "lost: ', r"lost: the guard is gone without a word"),
        "it was killed from outside, or its node was restarted: look in kernel.log and for other OOM guards there",
    ),
    Rule(
        "node_silent",
        "a node did not answer",
        _texts(r"^\S+ did not answer: "),
        "its SSH server, its links or the node itself: sparkyard doctor; a rank that still serves goes on serving",
    ),
    Rule(
        "init_hang",
        "not every rank came to the rendezvous",
        _texts(
            r"Timed out after .*clients?\b.*\d+/\d+ clients joined",
            r"DistStoreError",
            r"DistNetworkError",
            r"Timed out initializing process group",
            r"every rank joins the group: not within",
        ),
        "the rank that is missing names itself below: its log, its link to the head, its image",
    ),
    Rule(
        "hang",
        "the boot went silent and the guard ended it",
        _texts(r"hang: no line of output for", r"no line of output for [\d.]+ s in phase"),
        "guard.log has the stacks of that moment; one core spinning with an idle GPU is a collective that waits",
    ),
    Rule(
        "watchdog",
        "a collective or a batch did not end in its time",
        _texts(
            r"Watchdog caught collective operation timeout", r"[Ww]atchdog timeout \(", r"Scheduler watchdog"
        ),
        "one rank is slow or gone: compare the ranks' last lines; sparkyard doctor --deep tests the links",
    ),
    Rule(
        "kv_clamped",
        "the KV pool is smaller than the profile asks for",
        _texts(r"max_total_tokens=\d+ is larger than the profiled value \d+"),
        "the pin is above the budget, which moves with page cache: sparkyard plan serve; the engine only warns",
        level="slow path",
    ),
    Rule(
        "socket_fallback",
        "NCCL uses TCP sockets instead of RDMA",
        _texts(r"Using network Socket", r"NET/Socket\s*:\s*Using", r"Failed to initialize NET plugin IB"),
        "give the container /dev/infiniband; NCCL_IB_HCA must name this node's own cards",
        level="slow path",
    ),
    Rule(
        "eager",
        "the engine runs without CUDA graphs",
        _texts(r"cuda graph is disabled", r"Disable (cuda|CUDA) graph because", r"Capture cuda graph failed"),
        "memory for the capture, or a flag that turns graphs off: see the rank's arguments",
        level="slow path",
    ),
    Rule(
        "no_memory_lines",
        "the driver could not get memory at some point",
        _texts(r"NV_ERR_NO_MEMORY"),
        "good boots write this too: a trend of it is a sign, a single one is not",
        level="consequence",
    ),
    Rule(
        "killed",
        "a process was killed from outside",
        _texts(r"terminated with -9\b", r"exit code:? -9\b", r"exit(ed)? (code|with) 137"),
        "neither the guard nor the engine did it: look in kernel.log and for other OOM guards on that node",
        level="consequence",
    ),
    Rule(
        "engine_killed",
        "the whole engine of a rank was killed from outside",
        _texts(r"engine_signal: .*(\b9\b|SIGKILL)"),
        "neither the guard nor the engine did it: look in kernel.log and for other OOM guards on that node",
        level="consequence",
        # SGLang ends itself so when a peer or a scheduler of its own is gone
        unless=_texts(r"kill_process_tree called: .*include_parent=True"),
    ),
    Rule(
        "peer_gone",
        "another rank went away",
        _texts(
            r"[Cc]onnection closed by peer",
            r"[Cc]onnection reset by peer",
            r"NCCL WARN.*(remote process|peer).*(exited|gone|closed)",
            r"ncclRemoteError",
        ),
        "look at the rank that went first",
        level="consequence",
    ),
)

SAME: tuple[SameRule, ...] = (
    SameRule(
        "nccl_differs",
        "the ranks run different NCCL libraries",
        re.compile(r"NCCL version (\d+\.\d+\.\d+\S*)"),
        "one image by digest on every node: sparkyard build",
    ),
    SameRule(
        "engine_differs",
        "the ranks run different engines",
        re.compile(r"(?:sglang[_ ]version|SGLang version)[=: ]+'?(\d+\.\d+\.\d+\S*?)'?(?:[,\s]|$)"),
        "one image by digest on every node: sparkyard build",
    ),
    SameRule(
        "package_differs",
        "the ranks run different versions of sparkyard's engine package",
        re.compile(r"/engine/([0-9a-f]{64})\b"),
        "sparkyard build, then sparkyard restart",
    ),
)
