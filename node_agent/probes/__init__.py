"""Load probes of `doctor --deep`: each has a bound, reports progress, and leaves nothing behind."""
