"""For every suite: property tests are the same in each run, and a busy machine is no failure of theirs."""

from hypothesis import settings

settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate")
