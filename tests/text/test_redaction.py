"""Secrets are hidden in texts and payloads; what explains an error stays."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from flask_cronjobs.config import Settings
from flask_cronjobs.text.redaction import (
    MAX_ERROR_CHARACTERS,
    error_text,
    redacted,
    safe_text,
    strip_credentials,
)

WORDS = [
    "password", "PASSWORD", "password2", "passwords", "password_hash", "passphrase", "pass", "PASS",
    "DB_PASS", "auth", "basic_auth", "token", "tokens", "token_id", "access_token", "jwt", "sig",
    "api_key", "secret", "secret_key", "access_key", "AWS_SECRET_ACCESS_KEY", "SharedAccessKey",
    "session", "sessionid", "credentials", "Authorization", "X-Api-Key",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_words_that_name_a_secret_hide_it(word: str) -> None:
    assert strip_credentials(f"{word}=s3cret, a") == f"{word}=***"
    assert strip_credentials(f"{{'{word}': 's3cret', 'a': 1}}") == f"{{'{word}': ***"
    values: list[Any] = ["s3cret", {"a": ["s3cret"]}]
    for value in values:
        assert redacted({word: value}, Settings().redact) == {word: "***"}


def test_redaction_stops_at_a_depth_instead_of_the_stack() -> None:
    deep: Any = "bottom"
    for _ in range(500):
        deep = [deep]
    text = redacted(deep, ())
    assert "bottom" not in str(text)
    assert "***" in str(text)


PLAIN = {"name": "ada", "value": "x", "key": 1, "monkey": [None, True, 2.5], "": ""}
#: These names only contain such a word.
OTHER_WORDS = {"author": "ada", "passenger": 1, "compass": "n", "bypass": True, "pair": [1, 2]}


@pytest.mark.parametrize(
    ("payload", "names", "shown"),
    [
        ({"token": "abc", "ok": [1, None]}, ("token",), {"token": "***", "ok": [1, None]}),
        *(
            ({"xApiKey": 1, "b": 2}, (name,), {"xApiKey": "***", "b": 2})
            for name in ("Api-Key", "api_key", "API KEY")
        ),
        ({"dsn": "postgresql://ada:s3cret@db/a"}, (), {"dsn": "postgresql://***@db/a"}),
        ({"json": '{"password": "s3cret"}'}, (), {"json": '{"password": ***'}),
        *((plain, Settings().redact, plain) for plain in (PLAIN, OTHER_WORDS)),
    ],
)
def test_redaction(payload: Any, names: tuple[str, ...], shown: Any) -> None:
    before = str(payload)
    assert redacted(payload, names) == shown
    assert str(payload) == before


#: The rest of the line after one of these is hidden.
MARKERS = [
    *("password=", "User(password=", "get(url, auth=", "password == ", "password => ", "pwd : "),
    *("'api_key': ", "DB_PASS: ", "passwords: ", "api key: ", "os.environ['DB_PASSWORD'] = "),
    *("https://blob/a?sv=1&sig=", "https://s3/a?X-Amz-Signature=", "sent 'Authorization: "),
    *("Authorization: ", "Proxy-Authorization: ", "Set-Cookie: ", "Cookie: ", r"{\"password\": "),
]
VALUES = [
    *("s3cret", "'s3cret', 'a': 1}", 'rb"s3cret" a=1', r'"a\"s3cret", "a": 1', "s3'cret a=1"),
    *("[['s3cret'], ('s3cret',)], 'a': 1}", "{'access': 's3cret'}}", "Secret(value='s3', at=(1,))"),
    *("Bearer abcdefgh12345", 'Digest username="me", response="s3cret"', "password='s3cret'"),
    *("'s3cret in a text that was cut", "s3cret&a=1", "postgresql://me:s3cret@db/app"),
]


@pytest.mark.parametrize("marker", MARKERS)
def test_everything_after_a_marker_is_hidden(marker: str) -> None:
    for value in VALUES:
        assert strip_credentials(f"a\n{marker}{value}\nHost: a") == f"a\n{marker}***\nHost: a"


HIDDEN: list[tuple[str, str]] = [
    ("sent bearer abcdefgh12345 along", "sent bearer *** along"),
    ("postgresql://me:123/s3cret@db/app failed", "postgresql://***@db/app failed"),
    ("postgresql://me:pa/s:s@w?rd#@db/app failed", "postgresql://***@db/app failed"),
    ("https://:t0ken@host/", "https://***@host/"),
    ("https://ghp_t0ken@github.com/a/b", "https://***@github.com/a/b"),
    ("redis://:12345@cache:6379/0", "redis://***@cache:6379/0"),
    ("at http://a/b, amqp://me:s3cret@mq", "at http://a/b, amqp://***@mq"),
    ("pushed with ghp_16C7e42F292c6912E7710c838347Ae178B4a to a", "pushed with ghp_*** to a"),
    ("No such key: 'sk_live_4eC39HqLyjWDarjtT1zdp7dc'", "No such key: 'sk_live_***'"),
    ("(xoxb-17653672481-19874698323-pdFZKVeTuE8s) revoked", "(xoxb-***) revoked"),
    ("at eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVm-_x, b", "at eyJ***, b"),
    ("github_pat_11ABCDEFG0abcdefgh_x, glpat-abcdefghij", "github_pat_***, glpat-***"),
    ("AKIAIOSFODNN7EXAMPLE and sk-ant-api03-abcdefgh", "AKIA*** and sk-ant-***"),
    ("in/ghs_16C7e42F292c/x=npm_abcdefghijkl", "in/ghs_***"),
    ("npm_abcdefghijklmnopqrst, hvs.CAESIabcdefgh", "npm_***, hvs.***"),
    ("SG.ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf is", "SG.*** is"),
    (
        "dckr_pat_aB3dE5fG7h lin_api_aB3dE5fG7h ATATT3xFfGF0abc",
        "dckr_pat_*** lin_api_*** ATATT3***",
    ),
    (
        "a -----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY----- b",
        "a -----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- b",
    ),
    (r"'-----BEGIN PRIVATE KEY-----\nMIIEow", "'-----BEGIN PRIVATE KEY-----***"),
    ("amqp://me:s3cret@mq, amqp://me:s3cret@mq", "amqp://***@mq, amqp://***@mq"),
]


@pytest.mark.parametrize(("text", "kept"), HIDDEN)
def test_secrets_are_hidden(text: str, kept: str) -> None:
    assert strip_credentials(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'password'",
        "fields ['password', 'email'] are missing",
        "'password' is required",
        "required: --password, --user, or --token",
        "used 12 tokens",
        "authentication failed for user me",
        "author=ada, authors: [1, 2], compass=north, passenger: 3, bypass: 1",
        "This Session's transaction has been rolled back",
        "work is left in db.session: 1 INSERT",
        "unexpected keyword argument 'secretary'",
        "https://host:443/users and mail to a@b.c",
        'column "token" of relation "people" does not exist',
        'null value in column "email" of relation "people" violates not-null constraint',
        'duplicate key value violates unique constraint "uq_people_token"',
        "UNIQUE constraint failed: people.token",
        "could not connect to server: Connection refused (0x0000274D/10061)",
        "invalid literal for int() with base 10: 'abc'",
        "Key error (see above)",
        "key=value, monkey=1",
        "import sk-learn-pipelines, glass-something, ASIA-PACIFIC, npm_config_registry",
        "hf_hub_download, ghp_ and eyJ are prefixes, mask_live_things",
        "no secret here: 12:30 http://host/path",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert safe_text(text, MAX_ERROR_CHARACTERS) == text


STATEMENT = "(sqlite3.IntegrityError) no\n[SQL: INSERT INTO people VALUES (?, ?)]\n[parameters: "
BACKGROUND = "\n(Background on this error at: https://sqlalche.me/e/20/gkpj)"
ROW = "(psycopg.errors.NotNullViolation) no\nDETAIL:  Failing row contains ("
#: The text that is kept, and the text that the last ``***`` hides.
OF_STATEMENTS = [
    ("DETAIL:  Key (token)=(***\n[SQL: INSERT]", "s3cret) already exists."),
    ("Key (a, b)=(***", "s3, (cret)\n) already exists."),
    ("Key (lower(email))=(***", "s3) already exists) already exists."),
    ("Key (user_id)=(***", 's3cret) is not present in table "users".'),
    ("Key (at)=(***", "s3) conflicts with existing key (at)=(cret)."),
    ("Key (token)=(***", "s3cret in a text that was"),
    ("invalid input syntax for type integer: ***\nLINE 1: SELECT", '"s3\n"cret"'),
    ("invalid input syntax for type json\nDETAIL:  Token ***\n[SQL: SELECT]", '"s3" is invalid.'),
    ("syntax\nCONTEXT:  JSON data, line 1: ***\n[SQL: SELECT]", "s3cret"),
    ("invalid input value for enum mood: ***", '"s3cret" in order 5'),
    ("value *** is out of range for type integer", '"s3cret"'),
    ("date/time field value out of range: ***\nHINT:  x", '"s3cret"'),
    ("COPY failed\nCONTEXT:  COPY people, line 1, column token: ***", '"s3cret"'),
    (f"{STATEMENT}***{BACKGROUND}", "('ada', 's3cret')]"),
    (f"{STATEMENT}***{BACKGROUND} twice", "(ada,\ns3cret])]"),
    (f"{STATEMENT}***", "('ada', 's3cret')]"),
    (f"{ROW}***\n[SQL: INSERT]", "ada,\ns3cret)."),
    (f"{ROW}***", "ada, s3cret)."),
    ("Failing row contains (***", "ada, s3cret)."),
    (f"{ROW}***\n\nTraceback (most", "s3cret)."),
]


@pytest.mark.parametrize(("kept", "value"), OF_STATEMENTS)
def test_values_of_a_failed_statement_are_hidden(kept: str, value: str) -> None:
    assert safe_text(kept.replace("***", value), MAX_ERROR_CHARACTERS) == kept


def test_the_values_of_a_long_failed_statement_are_hidden_before_it_is_cut() -> None:
    text = f"{STATEMENT.replace('?', '?, ' * 9000)}[{'s3cret, ' * 9000}]]{BACKGROUND}"
    assert "s3cret" not in safe_text(text, MAX_ERROR_CHARACTERS)


def test_values_that_postgresql_says_in_another_language_are_hidden() -> None:
    detail = "Schlüssel »(token)=(s3cret)« existiert bereits."
    refused = ValueError(f"verletzt Unique-Constraint\nDETAIL:  {detail}")
    vars(refused)["diag"] = SimpleNamespace(sqlstate="23505", message_detail=detail, context=None)
    assert "s3cret" not in error_text(DBAPIError("INSERT", {"a": "s3cret"}, refused))


HOSTILE = [
    "ghp_", "eyJ", "sk-", "xoxb-", "sk_live_a",
    "password=[", "password='", "password", "password ", "'password'", "pass'", "auth\\\\",
    "session = ", "sig", "x://:1/", "://", "://a@", "@://", "token\t", "token\\", 'token="',
    "token='\n", "secret-", "bearer ", "basic  ", "authorization:", "cookie: a", "Key (",
    "key (a)=(", "[parameters: ",
    "Key (a)=(b) already exists", "\nDETAIL:  Token ", "invalid input syntax for ", 'value "',
    'invalid input syntax for a: "', 'value "" for "', "\nCONTEXT:  COPY ", "a",
    "Failing row contains (", "\n(Background",
]  # fmt: skip


#: The parts of markers, and texts that may be around and inside secrets.
PIECES = [
    *HOSTILE,
    *"\"'[](){}<>,;:=-@/ \n\t\\*_",
    *("token_id", "tokens", "17", "None", "***", "value", "http://a:80"),
    *("--secret", "Bearer ", "Authorization", "name"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
SECRET = "S3CRET"


@settings(deadline=None, max_examples=300)
@given(TEXTS, st.sampled_from(MARKERS), TEXTS, TEXTS)
def test_nothing_stays_between_a_marker_and_the_end_of_its_line(
    before: str, marker: str, between: str, after: str
) -> None:
    text = f"{before}\n{marker}x{between}".replace("\n", " ") + f"{SECRET}{after}"
    assert SECRET not in strip_credentials(text)


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(exclude_characters="=:-,")))
def test_text_without_a_marker_is_unchanged(text: str) -> None:
    assume("bearer" not in text.lower() and "basic" not in text.lower())
    assert strip_credentials(text) == text


@settings(deadline=None, max_examples=25)
@given(TEXTS.filter(bool))
def test_any_nesting_takes_linear_time(part: str) -> None:
    """In quadratic time, an input of this size would take minutes."""
    started = time.process_time()
    strip_credentials(part * (200_000 // len(part)))
    assert time.process_time() - started < 20
