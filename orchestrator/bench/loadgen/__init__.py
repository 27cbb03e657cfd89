"""The load generator: a program of its own that runs beside the controller or on another node.

Uses the standard library and httpx alone, with relative imports, because it travels as one zip archive
(`orchestrator.bench.parcel`) to nodes that have nothing but Python installed.
"""
