"""For every test: a busy machine is no failed property."""

from hypothesis import settings

settings.register_profile("klear", deadline=None)
settings.load_profile("klear")
