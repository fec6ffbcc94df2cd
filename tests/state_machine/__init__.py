"""Models: a small one searched to its end, and the store beside one that is easy to believe."""

import pytest

for name in ("store_machine", "features", "two_workers"):
    pytest.register_assert_rewrite(f"{__name__}.{name}")
