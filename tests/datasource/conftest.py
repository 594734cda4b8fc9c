"""Hypothesis without its deadline: how long one example takes says nothing on a shared machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
