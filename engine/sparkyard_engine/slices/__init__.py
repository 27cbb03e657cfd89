"""Slice store: the bytes of a checkpoint that one rank needs, on its own NVMe (docs/formats.md)."""
