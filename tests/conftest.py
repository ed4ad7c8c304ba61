"""What holds for every tier."""

from __future__ import annotations

from hypothesis import settings

# A busy machine must not fail a test that is right.
settings.register_profile("toolkit", deadline=None)
settings.load_profile("toolkit")
