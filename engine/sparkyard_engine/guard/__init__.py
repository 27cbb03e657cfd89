"""The guard of one rank: starts the engine, watches memory and phase, says why it ended.

Run as `python -m sparkyard_engine.guard SPEC.json`; PID 1 in the container, a child subreaper elsewhere.
"""
