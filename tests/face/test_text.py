"""Texts from outside, made safe to keep."""

from __future__ import annotations

import builtins
import sys
import time

import pytest

from flask_cronjobs.text import (
    MAX_ERROR,
    MAX_STACK,
    clean,
    cut,
    error_text,
    safe_text,
    stack_text,
    strip_credentials,
    type_name,
)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("é\U0001f600", "é\U0001f600"),
        ("a\0b", "a\ufffdb"),
        ("a\ud800b\udfffc", "a\ufffdb\ufffdc"),
        ("", ""),
        (None, None),
    ],
)
def test_what_no_database_takes_is_replaced(text: str | None, kept: str | None) -> None:
    assert clean(text) == kept


def test_short_text_is_not_cut() -> None:
    assert cut("x" * 100, 100) == "x" * 100


def test_long_text_keeps_head_and_tail_and_says_what_is_missing() -> None:
    kept = cut("H" * 500 + "m" * 9000 + "T" * 500, 1000)
    assert kept.startswith("H" * 500)
    assert kept.endswith("T" * 500)
    assert "9000 characters left out" in kept
    assert len(kept) < 1100


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgresql://me:s3cret@db/app failed", "postgresql://***@db/app failed"),
        ("https://:t0ken@host/", "https://***@host/"),
        ("password=s3cret, user=me", "password=***"),
        ("{'api_key': 's3cret', 'a': 1}", "{'api_key': ***"),
        ("DB_PASSWORD: s3cret", "DB_PASSWORD: ***"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: ***"),
        ("Authorization: Token s3cret\nHost: a", "Authorization: ***\nHost: a"),
        ("Proxy-Authorization: Negotiate s3cret", "Proxy-Authorization: ***"),
        ("{'Authorization': 'ApiKey s3cret', 'a': 1}", "{'Authorization': ***"),
        ('Authorization: Digest username="me", response="s3cret"', "Authorization: ***"),
        ("sent 'Authorization: Token s3cret' to /a", "sent 'Authorization: ***"),
        ("Set-Cookie: session=s3cret; HttpOnly\nHost: a", "Set-Cookie: ***\nHost: a"),
        ("Cookie: sid=abc; password='s3cret'", "Cookie: ***"),
        ("Cookie: sid='s3cret'; a=1", "Cookie: ***"),
        ("Cookie: a 'b', password='s3cret'", "Cookie: ***"),
        ("Cookie: a [('password', 's3cret')]", "Cookie: ***"),
        ("{'password': b's3cret', 'a': 1}", "{'password': ***"),
        ("password => s3cret, a => 1", "password => ***"),
        ("password := s3cret", "password := ***"),
        (r"{\"password\": \"s3cret\", \"a\": 1}", '{\\"password\\": ***'),
        ("api key: s3cret", "api key: ***"),
        ("credentials=s3cret sessionid=s3cret jwt=s3cret", "credentials=***"),
        ("https://s3/a?X-Amz-Signature=s3cret&a=1", "https://s3/a?X-Amz-Signature=***"),
        ("https://blob/a?sv=1&sig=s3cret", "https://blob/a?sv=1&sig=***"),
        ("sent bearer abcdefgh12345 along", "sent bearer *** along"),
        ("access_token=abc&x=1", "access_token=***"),
        ("https://ghp_t0ken@github.com/a/b", "https://***@github.com/a/b"),
        ("postgresql://me:pa/s:s@w?rd#@db/app failed", "postgresql://***@db/app failed"),
        ("redis://:12345@cache:6379/0", "redis://***@cache:6379/0"),
        ("at http://a/b, amqp://me:s3cret@mq", "at http://a/b, amqp://***@mq"),
        ("AWS_SECRET_ACCESS_KEY=s3cret", "AWS_SECRET_ACCESS_KEY=***"),
        ("secret_key=s3cret, access_key=s3cret", "secret_key=***"),
        ("passphrase: s3cret", "passphrase: ***"),
        (r'{"password": "a\"s3cret", "a": 1}', '{"password": ***'),
        ("password='s3cret in a text that was cut", "password=***"),
        ("SharedAccessKey=s3cret==;x=1", "SharedAccessKey=***"),
        ("no user: http://host:8080/@me/x?to=a@b", "no user: http://host:8080/@me/x?to=a@b"),
        ("no user: https://host/x?to=a@b", "no user: https://host/x?to=a@b"),
        ("key=value, monkey=1, tokens: 12", "key=value, monkey=1, tokens: 12"),
        ("no secret here: 12:30 http://host/path", "no secret here: 12:30 http://host/path"),
    ],
)
def test_credentials_are_stripped(text: str, kept: str) -> None:
    assert strip_credentials(text) == kept


def test_fifty_megabytes_are_cut_in_no_time() -> None:
    started = time.monotonic()
    kept = safe_text("password=s3cret " * 3_300_000, MAX_ERROR)
    assert time.monotonic() - started < 5
    assert len(kept) < MAX_ERROR + 100
    assert "s3cret" not in kept


HOSTILE = [
    "a", "://", "://a", "://:", "://a:", "://a:b/", "a://1:", "token", "token ", "token=",
    "token: ", "token = > ", "token\\\\", 'token="', "token='\n", r'token=\"', 'token="\\',
    "password\t", "secret-", "secret_access_", "bearer ", "basic  ", "@:/", "authorization:",
    "cookie: a", 'cookie:a"', "cookie:a\"b'", "cookie:a='", 'authorization="', "[parameters: ",
    "Failing row contains (", "\n(Background",
]  # fmt: skip


@pytest.mark.parametrize("part", HOSTILE)
def test_patterns_take_time_in_proportion_to_the_text(part: str) -> None:
    """One that goes over what it saw already would take years for this."""
    started = time.monotonic()
    strip_credentials(part * (500_000 // len(part)))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("start", "part"),
    [
        ("[parameters: ", "\n"),
        ("password", " "),
        ("token=", "\\"),
        ("cookie: ", 'a"'),
        ("://a:", "/"),
    ],
)
def test_what_begins_like_a_secret_takes_no_longer(start: str, part: str) -> None:
    started = time.monotonic()
    safe_text(start + part * (5_000_000 // len(part)), 1_000_000)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("part", HOSTILE)
def test_fifty_megabytes_of_anything_are_kept_in_short(part: str) -> None:
    started = time.monotonic()
    assert len(safe_text(part * (50_000_000 // len(part)), MAX_ERROR)) < MAX_ERROR + 100
    assert time.monotonic() - started < 60


STATEMENT = "(sqlite3.IntegrityError) no\n[SQL: INSERT INTO people VALUES (?, ?)]\n[parameters: "
BACKGROUND = "\n(Background on this error at: https://sqlalche.me/e/20/gkpj)"
ROW = "(psycopg.errors.NotNullViolation) no\nDETAIL:  Failing row contains ("


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"{STATEMENT}('ada', 's3cret')]{BACKGROUND}", f"{STATEMENT}***{BACKGROUND}"),
        (f"{STATEMENT}(ada,\ns3cret])]{BACKGROUND} twice", f"{STATEMENT}***{BACKGROUND} twice"),
        (f"{STATEMENT}('ada', 's3cret')]", f"{STATEMENT}***"),
        (f"{ROW}ada,\ns3cret).\n[SQL: INSERT]", f"{ROW}***\n[SQL: INSERT]"),
        (f"{ROW}ada, s3cret).", f"{ROW}***"),
        (f"{ROW}s3cret).\n\nTraceback (most", f"{ROW}***\n\nTraceback (most"),
    ],
)
def test_the_values_of_a_failed_statement_are_dropped(text: str, kept: str) -> None:
    assert safe_text(text, MAX_ERROR) == kept


def test_the_values_of_a_long_failed_statement_are_dropped_before_it_is_cut() -> None:
    text = f"{STATEMENT.replace('?', '?, ' * 9000)}[{'s3cret, ' * 9000}]]{BACKGROUND}"
    assert "s3cret" not in safe_text(text, MAX_ERROR)


class TestErrors:
    def test_message_is_kept(self) -> None:
        assert error_text(ValueError("broken é")) == "broken é"

    def test_error_without_message_is_named_instead(self) -> None:
        assert error_text(ValueError()) == "ValueError"

    @pytest.mark.parametrize(
        ("error", "trouble"),
        [(Unspeakable(), "RuntimeError"), (Exiting(), "SystemExit"), (Endless(), "RecursionError")],
    )
    def test_message_that_cannot_be_made_is_said_to_be_so(
        self, error: Exception, trouble: str
    ) -> None:
        assert error_text(error) == f"(its message could not be made: __str__ raised {trouble})"
        assert "could not be made" in stack_text(raised(error))

    def test_huge_message_is_cut(self) -> None:
        assert len(error_text(ValueError("x" * 50_000_000))) < MAX_ERROR + 100

    def test_type_is_named_with_its_module_unless_builtin(self) -> None:
        assert type_name(KeyError()) == "KeyError"
        assert type_name(Unspeakable()) == "tests.face.test_text.Unspeakable"


class TestStacks:
    def test_stack_names_the_place_and_the_error(self) -> None:
        stack = stack_text(raised(ValueError("broken")))
        assert stack.startswith("Traceback (most recent call last):")
        assert "in raised" in stack
        assert stack.rstrip().endswith("ValueError: broken")

    def test_cause_comes_first(self) -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error
        except ValueError as caught:
            stack = stack_text(caught)
        assert stack.index("KeyError: 'inner'") < stack.index("ValueError: outer")

    def test_circle_of_causes_ends(self) -> None:
        one, two = raised(ValueError("one")), raised(ValueError("two"))
        one.__cause__, two.__cause__ = two, one
        stack = stack_text(one)
        assert stack.count("Traceback") == 2

    def test_long_chain_is_bounded(self) -> None:
        error = raised(ValueError("0"))
        for number in range(1, 1000):
            following = raised(ValueError(str(number)))
            following.__cause__ = error
            error = following
        assert stack_text(error).count("Traceback") <= 8

    def test_deep_recursion_is_bounded(self) -> None:
        def dive(depth: int) -> None:
            dive(depth + 1)

        with pytest.raises(RecursionError) as caught:
            dive(0)
        stack = stack_text(caught.value)
        assert len(stack) < MAX_STACK + 100
        assert stack.count("in dive") <= 31

    def test_suppressed_context_is_left_out(self) -> None:
        error = raised(ValueError("shown"))
        error.__context__ = KeyError("hidden")
        error.__suppress_context__ = True
        assert "hidden" not in stack_text(error)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
    def test_group_within_group_is_bounded(self) -> None:
        group: BaseException = ValueError("x" * 1000)
        make = vars(builtins)["BaseExceptionGroup"]
        for _ in range(200):
            group = make("group", [group, ValueError("y")])
        assert len(stack_text(raised(group))) < MAX_STACK + 100
