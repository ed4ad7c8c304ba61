"""What becomes of a test that this machine cannot run."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip(reason: str) -> NoReturn:
    """Skip and say why; fail under `SGLANG_TESTS_NO_SKIP=1`, where nothing may be skipped."""
    if os.environ.get("SGLANG_TESTS_NO_SKIP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
