"""Models: a small one that is searched completely, and a simple one beside the store."""

import pytest

for name in ("store_machine", "features", "two_workers"):
    pytest.register_assert_rewrite(f"{__name__}.{name}")
