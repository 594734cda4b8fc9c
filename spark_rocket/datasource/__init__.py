"""``format("rocket")`` for Spark, and a listener that tells how far its streams are behind."""

from typing import TYPE_CHECKING, Any

from spark_rocket.datasource.source import RocketDataSource

if TYPE_CHECKING:
    from spark_rocket.datasource.views.lag_listener import RocketLagListener

__all__ = ["RocketDataSource", "RocketLagListener"]


def __getattr__(name: str) -> Any:
    """The listener is loaded when it is asked for: every planning process imports this package."""
    if name == "RocketLagListener":
        from spark_rocket.datasource.views.lag_listener import RocketLagListener

        return RocketLagListener
    raise AttributeError(name)
