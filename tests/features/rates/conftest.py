"""The executor of the tests, whose runs may have a rate, too."""

from tests.features.executors.conftest import executor as executor
