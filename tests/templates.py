"""Templates compiled once for the apps of all tests: it takes most of the time of a page."""

from __future__ import annotations

from flask import Flask
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket


class _Compiled(BytecodeCache):
    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def get_bucket(
        self, environment: Environment, name: str, filename: str | None, source: str
    ) -> Bucket:
        # What an app escapes is compiled in.
        escapes = "by name" if callable(environment.autoescape) else environment.autoescape
        return super().get_bucket(environment, f"{name} {escapes}", filename, source)

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._kept:
            bucket.bytecode_from_string(self._kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._kept[bucket.key] = bucket.bytecode_to_string()


def compile_once() -> None:
    """Let all apps of this process share the templates that they have compiled."""
    Flask.jinja_options = {**Flask.jinja_options, "bytecode_cache": _Compiled()}
