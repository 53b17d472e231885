"""The examples of docs/selectors.md compile in their languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leveret.selectors import SelectorError, jms_selector, sql_filter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "selectors.md"
BLOCKS = re.findall(r"```(jms|sql)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLES = [(language, line) for language, block in BLOCKS for line in block.splitlines()]


def test_both_languages_have_examples() -> None:
    assert {language for language, _ in EXAMPLES} == {"jms", "sql"}


@pytest.mark.parametrize(("language", "text"), EXAMPLES)
def test_examples_parse(language: str, text: str) -> None:
    (jms_selector if language == "jms" else sql_filter)(text)


def test_the_documented_error_is_raised() -> None:
    with pytest.raises(SelectorError) as caught:
        jms_selector("b  LIKE 5 AND a = 1")
    assert f"`{caught.value}`" in PAGE.read_text(encoding="utf-8")
