"""Checks of public arguments: an argument is used, or refused by its name before anything is sent.

``Client`` checks the public methods and constructors of all clients, with :func:`checked`, which also decorates public
functions and the constructors of settings and strategies. The annotations are the table: text, numbers, classes,
containers of these, and functions. A coroutine function is refused as a callback, because the client would not await
it. Times in milliseconds (``at_ms``, ``timestamp_ms``, ``begin_ms``, ``end_ms``) are refused if they look like seconds,
timeouts of requests if they are not above 0. An annotation that is only known to type checkers is not checked.

Pure. Corresponds to the static types of Java's client.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin

from spark_rocket.common.units import are_seconds
from spark_rocket.errors import ClientError

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
_TIMES = ("timestamp_ms", "at_ms", "begin_ms", "end_ms")
_TIMEOUTS = frozenset(
    {"timeout", "consume_timeout", "request_timeout", "send_timeout", "send_msg_max_timeout_per_request"}
)
_NAMES = {
    str: "a string", int: "an integer", float: "a number", bool: "True or False", bytes: "bytes", types.NoneType: "None"
}  # fmt: skip
_CHECKED_CONTAINERS = (list, tuple, set, frozenset)


def refuse(name: str, value: object, expected: str) -> ClientError:
    """Return the error for an invalid argument."""
    shown = f"{value!r:.80}" if isinstance(value, str | int | float | bytes) else type(value).__name__
    return ClientError(f"Invalid argument {name}: {shown}.", remedy=f"Pass {expected}.")


def check(name: str, value: object, hint: Any) -> None:
    """Raise ClientError unless the value has the type of the annotation."""
    if not _fits(value, hint):
        raise refuse(name, value, _expected(hint))
    if name.endswith(_TIMES) and isinstance(value, int) and are_seconds(value):
        raise refuse(name, value, f"milliseconds since 1970 (did you mean {value * 1000}?)")


def check_filter(tags: str | None, sql: str | None) -> None:
    """Raise ClientError if a filter by tags and one by an SQL92 expression are given together."""
    if sql is not None and tags not in (None, "", "*"):
        raise ClientError(
            f"Arguments tags={tags!r:.80} and sql={sql!r:.80} cannot be given together.",
            remedy="Give one of them; SQL92 can select tags: TAGS = 'a' AND amount > 5.",
        )


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def checked(function: F, prepare: Callable[[F, tuple[Any, ...], dict[str, Any]], Arguments] | None = None) -> F:
    """Return a function or method that checks its arguments by their annotations.

    ``prepare``: for a method; returns the arguments to call it with, from those that were checked, if its object has
    ``prepares_arguments``.
    """
    hints = _Hints(function)
    second: frozenset[type] = frozenset()  # types of a method's first argument that need no further check

    def check_all(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal second
        for name, value in (*zip(hints.positional, args, strict=False), *kwargs.items()):
            (hint, exact), kind = hints[name], type(value)
            if hint is not None and (kind not in exact or (kind is float and value != value)):
                check(name, value, hint)
                if name in hints.timeouts and value is not None and value <= 0:
                    raise refuse(name, value, "a number of seconds above 0")
        if len(args) == len(hints.positional[:2]) == 2 and hints[hints.positional[0]][0] is None:
            second = hints[hints.positional[1]][1] - {float}  # which may be NaN

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != 2 or type(args[1]) not in second:  # a method with one argument is most frequent
            check_all(args, kwargs)
        if prepare is not None and args[0].prepares_arguments:
            args, kwargs = prepare(function, args, kwargs)
        return function(*args, **kwargs)

    return typing.cast(F, call)


def checked_class(kind: type[C]) -> type[C]:
    """Check the arguments of a class's constructor: a decorator, also above ``@dataclass``."""
    setattr(kind, "__init__", checked(vars(kind)["__init__"]))  # noqa: B010  # mypy refuses to assign to a method
    return kind


class _Hints(dict[str, tuple[Any, frozenset[type]]]):
    """The annotation of each argument, None without one, and the types whose values need no further check.

    They are looked up for the first value: all modules are loaded then, and most calls give few of the arguments.
    """

    def __init__(self, function: Any) -> None:
        code = function.__code__
        self.positional: tuple[str, ...] = code.co_varnames[: code.co_argcount]
        self.timeouts = frozenset() if function.__name__.startswith("poll") else _TIMEOUTS  # a poll may return at once
        self._function = function
        self._annotations: dict[str, tuple[Any, str]] | None = None

    def __missing__(self, name: str) -> tuple[Any, frozenset[type]]:
        if self._annotations is None:
            self._annotations = _annotations(self._function)
        own = _own_arguments(self._function)
        options = self._annotations.keys() - set(own)
        if options and name not in own and name not in options:
            raise _unexpected(self._function, name, [*own, *options])
        found = self[name] = _known(
            *self._annotations.get(name, (None, "")), name.endswith(_TIMES) or name in self.timeouts
        )
        return found


@cache
def _known(written: Any, module: str, has_range: bool) -> tuple[Any, frozenset[type]]:
    """Return the annotation, and the types whose values need no further check but that for NaN."""
    hint = _resolved(written, module)
    kinds = get_args(hint) if isinstance(hint, types.UnionType) or get_origin(hint) is Union else (hint,)
    plain: set[type] = {int} if float in kinds else set()
    for kind in kinds:
        if isinstance(kind, type):
            plain.add(kind)
        elif isinstance(origin := get_origin(kind), type) and not issubclass(origin, Iterable):
            plain.add(origin)
    return hint, frozenset(plain - {int, float} if has_range else plain)


def _is_container(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Iterable)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations by argument, also in ``**options: Unpack[…]``. Unknown ones are omitted."""
    found = {name: _resolved(*given) for name, given in _annotations(inspect.unwrap(function)).items()}
    return {name: hint for name, hint in found.items() if hint is not None}


def _annotations(function: Any) -> dict[str, tuple[Any, str]]:
    """Return the annotation of each argument as it is written, and its module."""
    code, written, module = function.__code__, function.__annotations__, function.__module__
    own = _own_arguments(function)
    found = {name: (written[name], module) for name in own if name in written}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        options = code.co_varnames[len(own) + bool(code.co_flags & inspect.CO_VARARGS)]
        hint = _resolved(written.get(options), module)
        for kind in get_args(hint) if get_origin(hint) is typing.Unpack else ():
            found |= {name: (one, kind.__module__) for name, one in kind.__annotations__.items()}
    return found


def _own_arguments(function: Any) -> tuple[str, ...]:
    """Return the names of a function's arguments, without those in ``*args`` and ``**options``."""
    code = function.__code__
    return tuple(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _unexpected(function: Any, name: str, known: list[str]) -> TypeError:
    """Return Python's error for an unknown argument, which a function that passes ``**options`` on would accept."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    suggestion = f". Did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{suggestion}")


def _resolved(hint: Any, module: str) -> Any:
    """Return the annotation; None if there is none, or if it is unknown at run time."""
    if hint is None:
        return None

    def annotated() -> None: ...

    annotated.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(annotated, vars(sys.modules[module]))["hint"]
    except (NameError, TypeError):  # imported for type checkers only
        return None


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if hint is None or hint is types.NoneType:
        return value is None
    if origin is Callable or hint is Callable:
        is_coroutine = inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(
            getattr(value, "__call__", None)  # noqa: B004  # an object whose call is a coroutine
        )
        return callable(value) and not is_coroutine and _takes(value, _positional(hint))
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is bytes:
        return isinstance(value, bytes | bytearray | memoryview)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and value == value
    if _is_container(origin):
        return isinstance(value, origin) and not isinstance(value, str | bytes) and _elements_fit(value, hint)
    hint = origin if isinstance(origin, type) else hint  # a class with parameters, which its objects do not know
    if hint is Any or not isinstance(hint, type) or typing.is_typeddict(hint):  # Any is a class since Python 3.11
        return True
    if Protocol in hint.__bases__:
        methods = [name for name, one in vars(hint).items() if inspect.isfunction(one) and not name.startswith("_")]
        return all(callable(getattr(value, name, None)) for name in methods)
    return isinstance(value, hint)


def _positional(hint: Any) -> list[object]:
    """Return the annotated parameters of a function; none if any are allowed."""
    kinds = get_args(hint)
    return list(kinds[0]) if kinds and isinstance(kinds[0], list) else []


def _takes(function: Callable[..., object], parameters: list[object]) -> bool:
    """Whether a function can be called with as many positional arguments. True if it does not tell."""
    if not parameters:
        return True
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType) and not code.co_kwonlyargcount:
        # A selector is checked for each message, and a signature takes longer than the rest of the check.
        more = len(parameters) + isinstance(function, types.MethodType) - code.co_argcount
        if more == 0 or (more > 0 and code.co_flags & inspect.CO_VARARGS):
            return True
    try:
        # Not the signature of a function that a decorator wraps: the decorator may add or remove arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some functions in C have no signature
        return True
    try:
        signature.bind(*parameters)
    except TypeError:
        return False
    return True


def _elements_fit(value: object, hint: Any) -> bool:
    """Check the elements of a container; the elements of an iterator would be lost."""
    kinds = get_args(hint)
    if isinstance(value, Mapping) and len(kinds) == 2:
        return all(_fits(key, kinds[0]) and _fits(one, kinds[1]) for key, one in value.items())
    if isinstance(value, _CHECKED_CONTAINERS) and kinds:
        return all(_fits(one, kinds[0]) for one in value)
    return True


def _expected(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_expected(one) for one in get_args(hint)))
    if origin is Callable or hint is Callable:
        count = len(_positional(hint))
        return f"a function{f' of {count} arguments' if count > 1 else ''} (not a coroutine function)"
    if hint in _NAMES:
        return _NAMES[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(str(one) for one in hint)}"
    if isinstance(origin, type):
        kinds = ", ".join(_expected(one).removeprefix("a ").removeprefix("an ") for one in get_args(hint))
        return f"a {'mapping' if issubclass(origin, Mapping) else 'list'} ({kinds})"
    return f"a {getattr(hint, '__name__', hint)}"
