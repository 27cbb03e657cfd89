"""The lab's own model and checkpoint: V4.1's shapes and formats, small enough for a laptop."""
