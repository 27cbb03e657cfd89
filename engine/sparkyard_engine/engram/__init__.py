"""Packed Engram tables on a node's own drive: hash, ownership, format, pack and reader."""
