"""The terminal dashboard. The only package that knows textual."""
