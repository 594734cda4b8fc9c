"""Hypothesis without its deadline: the duration of one example is not significant on a shared machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
