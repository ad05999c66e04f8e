"""Small texts and checks that every room needs: suggestions, exceptions in a line, numbers."""

from __future__ import annotations

import builtins
import difflib
import functools
import inspect
import math
import operator
import os
import reprlib
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from querykey.errors import QuerykeyError, WrongTypeError

P = ParamSpec("P")
R = TypeVar("R")


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` for the nearest known word, or nothing where none is near."""
    names = {name.lower(): name for name in known if name != word}
    near = difflib.get_close_matches(word.lower(), list(names), n=1, cutoff=0.6)
    return f"; did you mean `{names[near[0]]}`?" if near else ""


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun: `1 row`, `2 rows`; `nouns` where the plural has no mere s."""
    return f"{count} {noun if count == 1 else nouns or f'{noun}s'}"


def and_more(others: int, noun: str, nouns: str = "") -> str:
    """Return what follows the first of some things by name: ` and 2 more rows`, or nothing."""
    return f" and {plural(others, f'more {noun}', nouns and f'more {nouns}')}" if others > 0 else ""


def a_type(value: Any) -> str:
    """Return the name of a value's type with its article, such as `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def last_line(error: BaseException, longest: int | None = None) -> str:
    """Return an exception as the last line of its traceback; at most `longest` letters of text."""
    text = " ".join(str(error).split())[:longest]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def raised(error: BaseException, longest: int | None = None) -> str:
    """Return an exception in a line, with the last line of the user's own code that it left."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_own(f.filename)]
    if not frames:
        return last_line(error, longest)
    last = frames[-1]
    return f"{last_line(error, longest)} ({short_path(last.filename)}:{last.lineno}, {last.name})"


def traceback_of(error: BaseException | None) -> str | None:
    """Return the whole traceback of an exception as text, and None of no exception."""
    return "".join(traceback.format_exception(error)) if error is not None else None


def short_path(file: str) -> str:
    """Return a file's path from its package on, or from the current folder."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return parts[-1] if parts else file


def is_own(file: str) -> bool:
    """Return whether a file is the user's: not ours, not Python's, and not an installed one."""
    others = (str(Path(__file__).parent), sysconfig.get_path("stdlib"))
    foreign = any(file.startswith(folder + os.sep) for folder in others)
    return not (foreign or "site-packages" in file or file.startswith("<"))


# What torch says where memory is short, or where the bytes of an array are beyond 64 bits.
NO_ROOM = ("can't allocate memory", "Storage size calculation overflowed")
LARGEST = 2**62  # what sizes and positions may be, so that their sums are still 64-bit numbers


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int, or raise the error which says that `name` must be a whole number.

    Integers of any library are whole numbers; booleans and floats are not.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise WrongTypeError(f"{name} is a whole number; got {value!r}")
    if number < least:
        raise QuerykeyError(f"{name} is at least {least}; got {number}")
    if number > LARGEST:
        raise QuerykeyError(f"{name} is at most 2^62; got {number}")
    return number


def seed_number(value: Any) -> int:
    """Return a seed as an int, or raise the error which says what NumPy and torch both take."""
    number = whole("seed", value, least=0)
    if number >= 2**32:
        raise QuerykeyError(f"seed is below 2^32; got {number}")
    return number


@contextmanager
def room_for(what: str) -> Iterator[None]:
    """Run a block that makes arrays; where memory has no room for them, say of what.

    A GPU's OutOfMemoryError stays as it is: callers catch it to try smaller sizes.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        plain = type(error) is RuntimeError and any(words in str(error) for words in NO_ROOM)
        if not (plain or isinstance(error, MemoryError)):
            raise
        raise QuerykeyError(f"there is no memory for {what}") from None


def share(name: str, value: Any) -> float:
    """Return `value`, or raise the error which says that `name` is from 0 to below 1."""
    if isinstance(value, bool) or not (
        isinstance(value, Real) and is_number(value) and 0 <= float(value) < 1
    ):
        raise QuerykeyError(f"{name} is a share, from 0 to below 1; got {value!r}")
    return float(value)


def number(name: str, value: Any, least: float = 0.0) -> float:
    """Return `value` as a float, or raise the error which says that `name` is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise WrongTypeError(f"{name} is a number; got {value!r}")
    if not is_number(value) or not least <= float(value) < math.inf:
        raise QuerykeyError(f"{name} is a finite number, at least {least:g}; got {value}")
    return float(value)


def is_number(value: Any) -> bool:
    """Return whether a value is one real number that a float can hold, of any library."""
    try:
        return not isinstance(value, bool | str | bytes) and math.isfinite(float(value)) in (0, 1)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that a call with a value of another type than annotated is refused.

    It looks into lists, tuples and mappings; for functions that are called seldom.
    """

    signature = functools.cache(lambda: inspect.signature(function))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature().bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # whose own error says which argument is missing
        owner = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")
        for parameter in signature().parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.pop(parameter.name, None)  # which the function looks at itself
            elif parameter.kind is parameter.VAR_POSITIONAL:
                for value in given.pop(parameter.name, ()):
                    _check_types(owner, function, {parameter.name: value})
        _check_types(owner, function, given)
        return function(*args, **kwargs)

    return call


def check_fields(spec: Any) -> None:
    """Refuse a dataclass in which a field has a value of another type than annotated."""
    _check_types(type(spec).__name__, type(spec), vars(spec))


def _check_types(owner: str, annotated: Any, given: Mapping[str, Any]) -> None:
    hints = _hints(annotated)
    for name, value in given.items():
        if name in hints and not _fits(value, hints[name]):
            text = annotated.__annotations__[name]
            if text.startswith("Annotated["):  # which says more than the type
                hint = hints[name]
                text = hint.__name__ if type(hint) is type else str(hint).removeprefix("typing.")
            raise WrongTypeError(f"`{name}` of {owner} is {text}; got {reprlib.repr(value)}")


@functools.cache
def _hints(annotated: Any) -> dict[str, Any]:
    if isinstance(annotated, type):
        return get_type_hints(annotated)
    return get_type_hints(annotated, localns=_Names(inspect.unwrap(annotated).__globals__))


class _Names(dict[str, Any]):
    """The names of a file, for its annotations; one that only type checkers import is any type."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, object)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type; of a type that it does not know, any is."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if hint is int:
        return not isinstance(value, bool) and _is_whole(value)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is None:
        known = isinstance(hint, type) and hint is not object and "typing" not in hint.__module__
        return not known or getattr(hint, "_is_protocol", False) or isinstance(value, hint)
    return callable(value) if kind is Callable else _holds(value, kind, parts)


def _is_whole(value: Any) -> bool:
    """Return whether a value is one whole number, of any library."""
    try:
        return operator.index(value) is not None
    except (TypeError, ValueError, RuntimeError):
        return False


def _holds(value: Any, kind: type, parts: tuple[Any, ...]) -> bool:
    """Return whether a value is a collection of a kind, with elements of these types in it."""
    if not isinstance(value, kind) or isinstance(value, str | bytes):
        return False
    if issubclass(kind, Mapping):
        return all(_fits(k, parts[0]) and _fits(v, parts[1]) for k, v in dict(value).items())
    if parts == (int, Ellipsis) and set(map(type, value)) <= {int}:
        return True  # at once, because such tuples are long
    if kind is tuple and Ellipsis not in parts:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    return not isinstance(value, Collection) or all(_fits(v, parts[0]) for v in value)
