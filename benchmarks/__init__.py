"""Benchmarks; each can also be run alone, such as ``python -m benchmarks.pages``."""

from __future__ import annotations

import argparse


def argument_parser(name: str, doc: str | None, short: str) -> argparse.ArgumentParser:
    """Return a parser of the benchmark *name*, with the option that all have.

    :param name: empty for all of them.
    :param doc: its docstring, for the help.
    :param short: what ``--short`` does.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        f"python -m benchmarks.{name}".rstrip("."), None, doc, formatter_class=raw
    )
    parser.add_argument("--short", action="store_true", help=short)
    return parser
