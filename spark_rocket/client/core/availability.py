"""Brokers to avoid for a while, because a request to them failed."""

from __future__ import annotations

from collections.abc import Callable, Container


class UnavailableBrokers:
    """Names or addresses of brokers that failed within ``seconds``."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._until: dict[str, float] = {}

    def __contains__(self, broker: str) -> bool:
        return self.until(broker) > 0.0

    def until(self, broker: str) -> float:
        """Return the end of the avoidance; 0 if the broker is available."""
        until = self._until.get(broker, 0.0)
        return until if until > self._monotonic() else 0.0

    def mark(self, broker: str) -> None:
        """Record a failed request."""
        self._until[broker] = self._monotonic() + self._seconds

    def clear(self, broker: str) -> None:
        """Record that the broker may be available."""
        self._until.pop(broker, None)

    def retain(self, brokers: Container[str]) -> None:
        """Forget brokers that are not registered any more."""
        for gone in [broker for broker in self._until if broker not in brokers]:
            del self._until[gone]
