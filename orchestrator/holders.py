"""Names who holds the memory that a node does not give back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field, ValidationError

from orchestrator.model.frozen import Frozen
from orchestrator.model.step import Failure
from orchestrator.remote.node import Ask, Node, reply

HOLDERS_TIMEOUT_S = 30.0


class Holder(Frozen):
    """A process, or a file in shared memory (without a pid)."""

    pid: int | None
    user: str = Field(max_length=256)
    command: str = Field(max_length=400)
    bytes: int = Field(ge=0)
    gpu_bytes: int = Field(default=0, ge=0)
    after_boot: bool = False
    """It began after the boot, so it is not what was there before."""

    def text(self) -> str:
        """Pid, user, command, bytes."""
        who = "file in shared memory" if self.pid is None else f"pid {self.pid}"
        on_gpu = f", {self.gpu_bytes:,} of them on the GPU" if self.gpu_bytes else ""
        since = ", there since the boot" if self.after_boot else ""
        return f"{who}, user {self.user}: {self.command}: {self.bytes:,} bytes{on_gpu}{since}"


class Holders(Frozen):
    """What the agent's request `holders` answers, the first suspect first."""

    available_bytes: int
    holders: tuple[Holder, ...] = Field(default=(), max_length=64)


async def name_holders(nodes: Mapping[str, Node], failure: Failure, deployment: str) -> Failure:
    """The failure of a wait for memory, with those who hold it. What the node does not tell is left out."""
    asked = Ask("holders", {"deployment": deployment})
    answer = await reply(nodes[failure.node], asked, timeout_s=HOLDERS_TIMEOUT_S)
    if answer.failure is not None:
        return failure
    try:
        found = Holders.model_validate(answer.value).holders
    except ValidationError:
        return failure
    if not found:
        text = "no process or shared file that this user sees holds much: the driver or the kernel keeps it"
        return replace(failure, message=f"{failure.message}; {text}", remedy="wait, or reboot the node")
    return replace(
        failure,
        message=f"{failure.message}; held by {found[0].text()}",
        evidence=tuple(holder.text() for holder in found),
        remedy="end what is not wanted there, or remove the file, then run it again",
    )
