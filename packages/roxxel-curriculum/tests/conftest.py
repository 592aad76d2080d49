"""Settings of the package's tests."""

from hypothesis import settings

# A slow machine is no wrong result: no test may depend on the clock.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")
