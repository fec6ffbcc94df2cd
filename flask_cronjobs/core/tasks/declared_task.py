"""A task as code declares it: its function, name and options, and its arguments and keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from ...errors import PayloadError, TaskError
from ...text import cut, one_line, shortened
from ...text.redaction import redacted, strip_credentials
from ...types import JSON
from .arguments import Arguments, named_by
from .options import EnqueueOptions, TaskOptions, is_key
from .payload import check_keys
from .rate import Rate, read_rate
from .retry import RetryPolicy, retry_policy
from .validation import options_go_before

#: How many characters a key may have: keys are parts of indexes.
KEY_CHARACTERS = 500
#: How many characters a label may have: it is one cell of a list.
LABEL_CHARACTERS = 120
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
#: How many unknown arguments an error names, and how many characters of each.
SHOWN = 60

#: How to fix an argument that is missing because a decorator supplies it.
_GIVEN_BY_DECORATOR = (
    ". If a decorator supplies it, give the decorator's inner function only the parameters that "
    "callers must supply: def inner(n) instead of def inner(*args, **kwargs)"
)


class DeclaredTask:
    """A task as code declares it: its handler, with a name and options.

    :ivar func: the handler.
    :ivar name: its name, ``job_type`` in a row.
    :ivar is_async: whether the handler is an ``async def``.
    :ivar named: the names of the handler's parameters that can be given by name.
    :ivar arguments: how its arguments are stored and read.
    :ivar concurrency_limit: how many runs of one concurrency key may run at once; None: no limit.
    :ivar rate: the rate at which attempts of one rate key may begin; None: no limit.
    :ivar fills: whether a key or a label is filled in from each payload.
    :ivar policies: the values that all of its runs share unless a call overrides them, for each
        default number of attempts that an app has. `new_run` adds them when they are first needed.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        name: str,
        options: TaskOptions,
        arguments: Arguments | None = None,
    ) -> None:
        self.func = func
        self.name = name
        self.options = options
        self.is_async: bool = inspect.iscoroutinefunction(func)
        self.concurrency_limit: int | None = None
        if options.concurrency is not None or options.concurrency_key is not None:
            self.concurrency_limit = options.concurrency or 1
        self.rate: Rate | None = None
        if options.rate is not None:
            self.rate = read_rate(options.rate, options.burst)
        filled = self.concurrency_limit, self.rate, options.unique, options.label
        self.fills: bool = any(template is not None for template in filled)
        self.policies: dict[int, dict[str, object]] = {}
        self.arguments: Arguments = arguments or Arguments(func)
        self._signature = self.arguments.signature
        self._is_wrapper = named_by(func) is not func
        parameters = self._signature.parameters.values()
        self.named: frozenset[str] = frozenset(p.name for p in parameters if p.kind in _NAMED)
        self._in_order = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._required = frozenset(p.name for p in parameters if p.default is p.empty)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The function's parameters, without annotations, and with ``…`` for each default.

        A default may be a secret.
        """
        return tuple(map(_bare, self._signature.parameters.values()))

    def payload(self, /, *args: object, **kwargs: object) -> dict[str, object]:
        """Return the payload of a call with these arguments.

        :raises TypeError: the handler does not take them.
        """
        by_name = {**dict(zip(self._in_order, args, strict=False)), **kwargs} if args else kwargs
        if len(by_name) == len(args) + len(kwargs) and self._takes(by_name):
            return by_name
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            message = cut(str(error), SHOWN * 3)
            others = self._other_unknown(kwargs, message)
            advice = options_go_before(self.name, kwargs.keys() - self.named)
            if self._is_wrapper and message.startswith("missing"):
                advice += _GIVEN_BY_DECORATOR
            raise TypeError(f"{self.name}() {message}{others}{advice}") from None
        arguments = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name, {})
        return arguments

    def _takes(self, names: Mapping[str, object]) -> bool:
        """Return whether the handler takes arguments of exactly these *names*.

        This is ten times as fast as binding the arguments, which would also say what is wrong.
        """
        return self._required <= names.keys() <= self.named

    def _other_unknown(self, names: Iterable[str], message: str) -> str:
        """Return a text that names the unknown arguments that Python's *message* leaves out."""
        parameters = self._signature.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return ""
        # Name few, and cut them: they may come from a request, and go to the log.
        unknown = islice((name for name in names if name not in parameters), SHOWN)
        others = [repr(name[:SHOWN]) for name in unknown if repr(name[:SHOWN]) not in message]
        return f"; it does not take {', '.join(others)}" if others else ""

    def payload_from(self, payload: Mapping[str, object]) -> Mapping[str, object]:
        """Return the payload of a call with *payload* as keyword arguments; often the same object.

        :raises TypeError: the handler does not take them.
        :raises PayloadError: *payload* is not a mapping whose keys are texts.
        """
        if isinstance(payload, dict) and self._takes(payload):
            return payload
        check_keys(payload)
        return self.payload(**payload)

    def current(self, payload: Mapping[str, JSON], hidden: Sequence[str]) -> Mapping[str, Any]:
        """Return a stored *payload*, or what the task's upgrade makes of it if it does not fit.

        :param hidden: the names of values that no message may contain, as for `redacted`.
        :raises TypeError: the handler does not take what the upgrade returned.
        :raises PayloadError: the upgraded payload is not plain JSON, or does not fit either.
        """
        if self.arguments.upgrade is None:
            return payload
        with suppress(TypeError, PayloadError):
            self.arguments.encode(self.payload_from(payload))
            return payload
        upgraded = self.payload_from(self.arguments.upgrade({**payload}))
        return self.arguments.encode(upgraded, hidden=hidden)

    def retry_policy(self, default_attempts: int) -> RetryPolicy:
        """Return the task's retry policy; *default_attempts* is its default number of attempts."""
        return retry_policy(self.options.retry, default_attempts)

    def keys_for(self, payload: Mapping[str, object]) -> dict[str, str | None]:
        """Return the concurrency key and the rate key of a run, each None without such a limit.

        By default, a key is the task's name.

        :param payload: the run's payload as it is stored.
        :raises TaskError: the payload lacks what a key names, or the key cannot be stored.
        """
        limits = {"concurrency_key": self.concurrency_limit, "rate_key": self.rate}
        return {
            key: None if limit is None else self.filled(key, payload) or self.name
            for key, limit in limits.items()
        }

    def label_for(self, payload: Mapping[str, object], hidden: Sequence[str]) -> str | None:
        """Return the label of a run with *payload*, safe to show; None if the task has none.

        A label never prevents a run: if *payload* cannot fill it in, the run has none.

        :param payload: as it is stored.
        :param hidden: the names of values that are hidden, as by `redacted`.
        """
        if self.options.label is None:
            return None
        values = cast("JSON", {**self.arguments.defaults, **payload})
        try:
            label = self.options.label.format_map(cast("Any", redacted(values, hidden)))
        except (LookupError, AttributeError, TypeError, ValueError):
            return None
        clean = strip_credentials(one_line(label[: LABEL_CHARACTERS * 4])).strip()
        return shortened(clean, LABEL_CHARACTERS) or None

    def with_unique_while(self, options: EnqueueOptions) -> EnqueueOptions:
        """Return *options* with the task's ``unique_while``, unless they have their own.

        By default, a key that ``unique`` makes is held until its run has ended.

        :raises TaskError: the task's ``unique_while`` does not go with ``replace``.
        """
        held_while = self.options.unique_while
        if held_while is None and self.options.unique is not None:
            held_while = None if options.idempotency_key or options.replace else "pending"
        if options.unique_while is not None or held_while is None:
            return options
        own_options = options._replace(unique_while=held_while)
        own_options.check_key_options()
        return own_options

    def filled(self, option: str, payload: Mapping[str, object]) -> str | None:
        """Return the key that an option of the task makes of *payload*; None without that option.

        :param option: the name of an option whose value is a format text.
        :param payload: as it is stored.
        :raises TaskError: see `keys_for`.
        """
        key_format: str | None = getattr(self.options, option)
        if key_format is None:
            return None
        its_key = f"The {option} {key_format!r} of the task {self.name}"
        try:
            key = key_format.format(**{**self.arguments.defaults, **payload})
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise TaskError(
                f"{its_key} cannot be filled in from the payload: {error!r}. Pass the arguments "
                "that it names, or use only values that every payload has. A dataclass is stored "
                "as an object: write its field as {item[id]}."
            ) from None
        if not is_key(key, KEY_CHARACTERS):
            raise TaskError(
                f"{its_key} makes a key of {len(key):,} characters from this payload. A key must "
                f"have 1 to {KEY_CHARACTERS} printable characters. Use an id or a short code in "
                "it."
            )
        return key


def _bare(parameter: inspect.Parameter) -> str:
    bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
    return str(bare) if parameter.default is parameter.empty else f"{bare}=…"
