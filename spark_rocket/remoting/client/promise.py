"""A future of work that is under way elsewhere: the one promise type of this package, apart from asyncio's.

Thread-safety: all methods. Callbacks run on the thread that settles the promise and must be short.
Corresponds to org.apache.rocketmq.remoting.netty.ResponseFuture.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Promise(Future[T]):
    """A future that is settled once: of several outcomes the first one counts.

    It cannot be cancelled, because its request is on its way.
    """

    def cancel(self) -> bool:
        return False

    def resolve(self, value: T) -> bool:
        """Settle with a result; False if the promise is settled already."""
        return self._settle(value, None)

    def fail(self, error: BaseException) -> bool:
        """Settle with an error; False if the promise is settled already."""
        return self._settle(None, error)

    def _settle(self, value: T | None, error: BaseException | None) -> bool:
        try:
            if error is None:
                self.set_result(value)  # type: ignore[arg-type]  # None only if T has it
            else:
                self.set_exception(error)
        except InvalidStateError:
            return False
        except KeyboardInterrupt:
            raise
        except BaseException:  # a callback's SystemExit must not end a thread that serves others
            logger.exception("a callback of a promise failed")
        return True


def failed(error: BaseException) -> Promise[T]:
    """A promise that has failed."""
    promise: Promise[T] = Promise()
    promise.fail(error)
    return promise
