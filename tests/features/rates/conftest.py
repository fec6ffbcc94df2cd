"""The tests' executor, whose runs may also have a rate."""

from tests.features.executors.conftest import executor as executor
