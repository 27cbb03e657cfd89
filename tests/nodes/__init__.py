"""Recorded nodes, made from public values."""
