"""Bounded texts and numbers of what a node says; nothing that comes from a node is trusted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

Text = Annotated[str, StringConstraints(max_length=4096)]
Short = Annotated[str, StringConstraints(max_length=400)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
