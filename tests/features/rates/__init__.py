"""Tests of rate limits."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.machines", f"{__name__}.kills")
