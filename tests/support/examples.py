"""Number of examples of property tests: a quarter in `make test`, all in `make test-all`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

# Set by `make test-all`.
THOROUGH = bool(os.environ.get("LEVERET_THOROUGH"))
# A quick run tries one example in this many, but at least MIN_EXAMPLES.
QUICK_SHARE = 4
MIN_EXAMPLES = 15


def examples(number: int, **options: Any) -> settings:
    """Settings of a test that tries this many examples; `options` are further settings of Hypothesis."""
    quick = max(number // QUICK_SHARE, min(number, MIN_EXAMPLES))
    return settings(max_examples=number if THOROUGH else quick, **options)
