"""The exchange of values between a check and the program under test, each in its own sandbox.

This code runs inside both, so it uses the standard library alone. `run` executes a check, with a proxy for each name that the
program defines, and `serve` answers for the program. Each side sends a message by `ask` and gets the other side's next one.

Data crosses by value: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, and, marked by type,
bytearray, range, deque, Counter, defaultdict, OrderedDict, namedtuples, Decimal, Fraction, dates and times, dict views,
built-in functions and types. Subclasses of str, int, float, list, set and dict cross as these, numpy arrays as lists. Any
other object stays on its side and is referred to by number. Calls, attributes, items and iteration are forwarded to it.
Comparisons are not, so that no object of the program decides its own verdict. A program may do less with objects of the
check, see `is_allowed`. Arguments that the program changes in place change for the check too. Its exceptions are raised there
as the nearest built-in one, except StopIteration, which could end a loop of the check early.
"""

import builtins
import datetime
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any

MARK = "\x00"
ATOMS = (type(None), bool, int, float, str, bytes, complex)
BASES: tuple[Any, ...] = (str, int, float, list, set, frozenset, dict, tuple)
MUTABLE = (list, dict, set, bytearray, deque)
VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
DATES = (datetime.datetime, datetime.date, datetime.time)
MAKERS: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (bytearray, deque, range, Decimal, Fraction, datetime.timedelta, OrderedDict)},
    **{kind.__name__: kind.fromisoformat for kind in DATES},
    "Counter": lambda items: Counter(dict(items)),
    "defaultdict": partial(defaultdict, None),
    "keys": lambda items: dict.fromkeys(items).keys(),
    "values": lambda items: dict(enumerate(items)).values(),
    "items": lambda items: dict(items).items(),
    "namedtuple": lambda name, fields, items: namedtuple(name, fields)(*items),
    "same": lambda value: value,
}
ITERATORS = {"list_iterator", "tuple_iterator", "generator", "map", "filter", "zip", "enumerate", "reversed"}
AS_PLAIN: dict[Any, Any] = {deque: list, Decimal: str, bytearray: bytes}
CHECK = "check"
NO_ENDS = (StopIteration, StopAsyncIteration)
MAX_SEARCHED = 1000  # items that `in` tries, since an endless iterator would contain any value
FORBIDDEN = (PermissionError, MemoryError)


class Bridge:
    """One side: the objects that it sends by reference, and the proxies that it receives. Only a program has `names` to
    request.
    """

    def __init__(self, ask: Callable[[Any], Any], names: dict[str, Any], *, is_check: bool) -> None:
        self.ask, self.names, self.is_check = ask, names, is_check
        self.kept: list[Any] = []

    def pack(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is list:
            return [self.pack(item) for item in value]
        if kind is tuple:
            packed = tuple([self.pack(item) for item in value])
            return (MARK, "tuple", packed) if packed and packed[0] == MARK else packed
        if kind is dict:
            return {self.pack(key): self.pack(item) for key, item in value.items()}
        if kind is set or kind is frozenset:
            return kind(self.pack(item) for item in value)
        return (MARK, *self.pack_marked(value, kind))

    def pack_marked(self, value: Any, kind: type) -> tuple[Any, ...]:
        if kind is Remote:
            return object.__getattribute__(value, "_there")
        if kind in VIEWS:
            return VIEWS[kind], self.pack(list(value))
        if kind in (Counter, OrderedDict, defaultdict):
            return kind.__name__, self.pack(list(value.items()))
        if kind is Fraction:
            return "Fraction", value.numerator, value.denominator
        if kind is datetime.timedelta:
            return "timedelta", value.days, value.seconds, value.microseconds
        if kind is range:
            return "range", value.start, value.stop, value.step
        if kind in AS_PLAIN:
            return kind.__name__, self.pack(AS_PLAIN[kind](value))
        if kind in DATES:
            return kind.__name__, value.isoformat()
        if (self.is_check or isinstance(value, type)) and is_built_in(value):
            return "built in", value.__name__
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return "namedtuple", kind.__name__, kind._fields, self.pack(tuple(value))
        if kind.__module__ == "numpy":
            return "same", self.pack(value.tolist())
        for base in BASES:
            if isinstance(value, base):
                return "same", self.pack(base(value))
        self.kept.append(value)
        return "kept", len(self.kept) - 1

    def unpack(self, form: Any) -> Any:
        kind = type(form)
        if kind is list:
            return [self.unpack(item) for item in form]
        if kind is dict:
            return {self.unpack(key): self.unpack(item) for key, item in form.items()}
        if kind is set or kind is frozenset:
            return kind(self.unpack(item) for item in form)
        if kind is tuple:
            return (
                self.unpack_marked(*form[1:])
                if form and form[0] == MARK
                else tuple([self.unpack(item) for item in form])
            )
        return form

    def unpack_marked(self, name: str, *parts: Any) -> Any:
        """Return the value of a marked form: a proxy for an object of the other side, or our own object itself."""
        if name == "kept":
            return Remote(self, ("own", *parts))
        if name == "named":
            if parts[0] not in self.names:
                raise NameError(f"name {parts[0]!r} is not defined")
            return self.names[parts[0]]
        if name == "own":
            return self.kept[parts[0]]
        if name == "tuple":
            return tuple([self.unpack(item) for item in parts[0]])
        if name == "built in":
            found = getattr(builtins, parts[0])
            if self.is_check and not isinstance(found, type):
                raise TypeError(f"a program may not give {parts[0]} to a check")
            return found
        return MAKERS[name](*self.unpack(list(parts)))

    def request(self, what: str, there: tuple[Any, ...], *parts: Any) -> Any:
        """Request an action on an object of the other side, and serve that side's requests meanwhile."""
        message = ("do", what, (MARK, *there), self.pack(list(parts)))
        while True:
            (reply,) = self.ask(message)
            if reply[0] != "do":
                break
            message = self.do(*reply[1:])
        outcome, about, result = reply
        if outcome == "raised":
            raise make_exception(about, result)
        for index, form in about:
            refill(parts[0][index], self.unpack(form))
        return self.unpack(result)

    def do(self, what: str, there: Any, packed: Any) -> tuple[Any, ...]:
        """Execute a request of the other side. Return the arguments after it, and the result."""
        try:
            thing, parts = self.unpack(there), self.unpack(packed)
            if self.is_check and not (there[1] == "own" and is_allowed(what, thing, parts)):
                raise TypeError(f"{what} of a {type(thing).__name__} of the check is not available to the program")
            if what != "call":
                return "value", [], self.pack(ACTIONS[what](thing, *parts))
            arguments, keywords = parts
            result = thing(*arguments, **keywords)
            changed = []
            for index, (argument, before) in enumerate(zip(arguments, packed[0], strict=True)):
                if isinstance(argument, MUTABLE) and (after := self.pack(argument)) != before:
                    changed.append((index, after))
            return "value", changed, self.pack(result)
        except FORBIDDEN:
            raise
        except Exception as error:
            return "raised", [base.__name__ for base in type(error).__mro__], str(error)[:500]


def is_built_in(value: Any) -> bool:
    return callable(value) and getattr(builtins, str(getattr(value, "__name__", "")), None) is value


def is_allowed(what: str, thing: Any, parts: list[Any]) -> bool:
    """Return whether a program may do this with an object of the check: call it, iterate, use the row's public classes.

    Anything else could lead to the code of the check and so to its expected values.
    """
    if type(thing).__module__ == CHECK:
        return what not in ("attribute", "change") or not str(parts[0]).startswith("_")
    return what == "call" or (what in ("iterator", "step") and type(thing).__name__ in ITERATORS)


def step(iterator: Iterator[Any]) -> list[Any]:
    for item in iterator:
        return [item]
    return []


ACTIONS: dict[str, Callable[..., Any]] = {
    "attribute": getattr,
    "change": setattr,
    "item": lambda thing, key: thing[key],
    "place": lambda thing, key, value: thing.__setitem__(key, value),
    "length": len,
    "iterator": iter,
    "step": step,
    "truth": bool,
    "text": str,
    "shown": repr,
    "instance": lambda thing, value: isinstance(value, thing),
}


class Remote:
    """A proxy for an object of the other side."""

    def __init__(self, bridge: Bridge, there: tuple[Any, ...]) -> None:
        object.__setattr__(self, "_bridge", bridge)
        object.__setattr__(self, "_there", there)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return remote(self, "call", list(arguments), keywords)

    def __getattr__(self, name: str) -> Any:
        return remote(self, "attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        remote(self, "change", name, value)

    def __getitem__(self, key: Any) -> Any:
        return remote(self, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        remote(self, "place", key, value)

    def __len__(self) -> int:
        return remote(self, "length")

    def __iter__(self) -> Iterator[Any]:
        iterator = remote(self, "iterator")
        return iterator if isinstance(iterator, Remote) else iter(iterator)

    def __contains__(self, value: Any) -> bool:
        return value in islice(self, MAX_SEARCHED)

    def __next__(self) -> Any:
        return next(iter(remote(self, "step")))

    def __bool__(self) -> bool:
        return remote(self, "truth")

    def __str__(self) -> str:
        return remote(self, "text")

    def __repr__(self) -> str:
        return remote(self, "shown")

    def __instancecheck__(self, value: Any) -> bool:
        return remote(self, "instance", value)


def remote(stand_in: Remote, what: str, *parts: Any) -> Any:
    bridge, there = object.__getattribute__(stand_in, "_bridge"), object.__getattribute__(stand_in, "_there")
    return bridge.request(what, there, *parts)


def refill(original: Any, changed: Any) -> None:
    if isinstance(original, (list, bytearray)):
        original[:] = changed
    elif isinstance(original, (dict, set, deque)):
        original.clear()
        original.extend(changed) if isinstance(original, deque) else original.update(changed)


def make_exception(names: list[str], text: str) -> Exception:
    """Return the nearest built-in exception, by the names of the classes."""
    for name in names:
        found = getattr(builtins, name, None)
        if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, NO_ENDS):
            try:
                return found(text)
            except TypeError:
                continue  # such as UnicodeDecodeError, which needs more arguments
    return RuntimeError(f"{names[0]}: {text}")


def run(ask: Callable[[Any], Any], source: str, names: list[str]) -> None:
    bridge = Bridge(ask, {}, is_check=True)
    exec(source, {"__name__": CHECK} | {name: Remote(bridge, ("named", name)) for name in names})


def serve(ask: Callable[[Any], Any], namespace: dict[str, Any]) -> None:
    """Answer requests for the program in this namespace until the requests end."""
    bridge, message = Bridge(ask, namespace, is_check=False), None
    while True:
        ((_, *wanted),) = ask(message)
        message = bridge.do(*wanted)
