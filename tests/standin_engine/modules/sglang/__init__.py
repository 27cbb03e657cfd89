"""A stand-in for the engine: the same command line, ports, log lines and life cycle, no model. For tests only."""
