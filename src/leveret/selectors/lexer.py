"""The lexers of both dialects.

JMS selectors (Jakarta Messaging 3.1 section 3.8.1.1) have the literals and identifiers of Java; `amqp:sql-filter` (AMQP
Filter Expressions 1.0 section 6) defines its own. Extensions: JMS identifiers may contain dots, a name after
`amqp.annotation.` may contain hyphens, and `"any name"` is an identifier; SQL identifiers may start with `_`.
"""

from __future__ import annotations

import re
import unicodedata
from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

from leveret.selectors.errors import Limits, SelectorError
from leveret.selectors.names import ANNOTATION_PREFIX, SECTIONS
from leveret.selectors.syntax import Constant, Identifier, Writer

END: Final = "the end"
WORD: Final = "word"
NAME: Final = "name"
CONSTANT: Final = "constant"
SYMBOL: Final = "symbol"

MIN_LONG: Final = -(2**63)
MAX_LONG: Final = 2**63 - 1
MAX_ULONG: Final = 2**64 - 1

_SYMBOLS: Final = re.compile(r"<>|<=|>=|[=<>+\-*/(),]")
_SQL_SYMBOLS: Final = re.compile(r"<>|!=|<=|>=|[=<>+\-*/%(),]")
_BLANKS: Final = re.compile(r"[ \t\f\n\r]+")

_D: Final = r"[0-9](?:[0-9_]*[0-9])?"
_X: Final = r"[0-9a-fA-F](?:[0-9a-fA-F_]*[0-9a-fA-F])?"
_EXPONENT: Final = rf"[eE][+-]?{_D}"
_JMS_FLOAT: Final = re.compile(
    rf"(?:{_D}\.(?:{_D})?(?:{_EXPONENT})?|\.{_D}(?:{_EXPONENT})?|{_D}{_EXPONENT})[fFdD]?|{_D}[fFdD]"
)
_JMS_HEX_FLOAT: Final = re.compile(rf"(0[xX](?:{_X}\.?(?:{_X})?|\.{_X})[pP][+-]?{_D})[fFdD]?")
_JMS_INTEGER: Final = re.compile(
    rf"(?:0[xX]({_X})|0[bB]([01](?:[01_]*[01])?)|(0[0-7_]*[0-7])|(0|[1-9](?:[0-9_]*[0-9])?))[lL]?"
)
_SQL_FLOAT: Final = re.compile(r"[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")
_SQL_BINARY: Final = re.compile(r"0x([0-9a-fA-F]+)")
_SQL_INTEGER: Final = re.compile(r"[0-9]+")
_SQL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Java identifiers start with letters, letter numbers, currency symbols or connectors; digits and marks may follow.
_START: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"})
_PART: Final = _START | {"Nd", "Mn", "Mc"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `kind` is one of the constants above; `text` is a reserved word, a symbol, or END."""

    kind: str
    text: str
    position: int
    value: Constant = False
    name: Identifier | None = None


class Lexer(Writer):
    """A dialect: reads its tokens, and writes its names."""

    words: frozenset[str]
    symbols: re.Pattern[str]
    largest: int
    """The largest integer literal."""

    def tokens(self, text: str, limits: Limits) -> list[Token]:
        """Return all tokens and END. Raises `SelectorError`."""
        if len(text) > limits.length:
            raise SelectorError(limits.length, f"at most {limits.length} characters", text)
        found: list[Token] = []
        position = 0
        while True:
            if blank := _BLANKS.match(text, position):
                position = blank.end()
            if position == len(text):
                found.append(Token(END, END, position))
                return found
            token, position = self.token(text, position)
            found.append(token)

    def token(self, text: str, position: int) -> tuple[Token, int]:
        """Return the token at `position`, and its end."""
        character = text[position]
        if character in "0123456789." and (character != "." or text[position + 1 : position + 2].isdecimal()):
            value, end = self.number(text, position)
            if end < len(text) and (text[end] in "_$." or text[end].isalnum()):
                raise SelectorError(end, "the end of the number", text)
            return Token(CONSTANT, text[position:end], position, value), end
        if character == "'":
            string, end = quoted(text, position, "'")
            return Token(CONSTANT, text[position:end], position, string), end
        if symbol := self.symbols.match(text, position):
            return Token(SYMBOL, "<>" if symbol[0] == "!=" else symbol[0], position), symbol.end()
        return self.word(text, position)

    @abstractmethod
    def number(self, text: str, position: int) -> tuple[Constant, int]:
        """Return the number at `position`, which is a digit or a dot before one, and its end."""

    @abstractmethod
    def word(self, text: str, position: int) -> tuple[Token, int]:
        """Return the reserved word or identifier at `position`, and its end."""


def quoted(text: str, position: int, quote: str) -> tuple[str, int]:
    """Return a quoted string, in which the quote itself is doubled, and its end."""
    parts: list[str] = []
    start = position + 1
    while (end := text.find(quote, start)) >= 0:
        if not text.startswith(quote, end + 1):
            parts.append(text[start:end])
            return "".join(parts), end + 1
        parts.append(text[start : end + 1])
        start = end + 2
    raise SelectorError(len(text), f"a closing {quote}", text)


def integer(digits: str, base: int, text: str, position: int) -> int:
    """Return the value of digits. The parser checks the range, because the sign is not known here."""
    # int() takes quadratic time for bases that are not powers of two, and refuses thousands of digits.
    digits = digits.replace("_", "").lstrip("0")
    if len(digits) > 64:
        raise SelectorError(position, "a number of 64 bits", text)
    return int(digits or "0", base)


def double(digits: str, text: str, position: int) -> float:
    """Return the value of a decimal fraction or a number with an exponent."""
    value = float(digits.replace("_", "").rstrip("fFdD"))
    if value == float("inf"):
        raise SelectorError(position, "a number in the range of a double", text)
    return value


class JmsLexer(Lexer):
    """JMS message selectors."""

    words = frozenset({"NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"})
    symbols = _SYMBOLS
    largest = MAX_LONG

    def number(self, text: str, position: int) -> tuple[Constant, int]:
        if match := _JMS_HEX_FLOAT.match(text, position):
            try:
                return float.fromhex(match[1].replace("_", "")), match.end()
            except (OverflowError, ValueError):
                raise SelectorError(position, "a number in the range of a double", text) from None
        if match := _JMS_FLOAT.match(text, position):
            return double(match[0], text, position), match.end()
        match = _JMS_INTEGER.match(text, position)
        assert match is not None, "a digit is an integer"
        for group, base in ((1, 16), (2, 2), (3, 8), (4, 10)):
            if digits := match[group]:
                return integer(digits, base, text, position), match.end()
        raise AssertionError("none of the groups matched")

    def word(self, text: str, position: int) -> tuple[Token, int]:
        if text[position] == '"':
            name, end = quoted(text, position, '"')
            return Token(NAME, text[position:end], position, name=Identifier(name)), end
        end = self._name_end(text, position)
        if end == position:
            raise SelectorError(position, "a literal, an identifier or an operator", text)
        name = text[position:end]
        if (upper := name.upper()) in self.words and name.isascii():
            return Token(WORD, upper, position), end
        return Token(NAME, name, position, name=Identifier(name)), end

    def name(self, identifier: Identifier) -> str:
        name = identifier.name
        if name and self._name_end(name, 0) == len(name) and not (name.isascii() and name.upper() in self.words):
            return name
        return '"' + name.replace('"', '""') + '"'

    @staticmethod
    def _name_end(text: str, position: int) -> int:
        """Return the end of the identifier at `position`; `position` itself if there is none."""
        if unicodedata.category(text[position]) not in _START:
            return position
        end = position + 1
        hyphens = text.startswith(ANNOTATION_PREFIX, position)
        while end < len(text):
            character = text[end]
            if not (character == "." or (hyphens and character == "-") or unicodedata.category(character) in _PART):
                break
            end += 1
        return end


class SqlLexer(Lexer):
    """`amqp:sql-filter`. Reserved words are in upper case."""

    words = frozenset({"NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "LIKE", "IN", "IS", "ESCAPE", "UTC"})
    # Reserved words of unsupported functions, which cannot be names either.
    unsupported = frozenset({"EXISTS", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE"})
    symbols = _SQL_SYMBOLS
    largest = MAX_ULONG

    def number(self, text: str, position: int) -> tuple[Constant, int]:
        if match := _SQL_BINARY.match(text, position):
            if len(match[1]) % 2:
                raise SelectorError(match.end(), "an even number of hexadecimal digits", text)
            return bytes.fromhex(match[1]), match.end()
        if match := _SQL_FLOAT.match(text, position):
            return double(match[0], text, position), match.end()
        match = _SQL_INTEGER.match(text, position)
        assert match is not None, "a digit is an integer"
        return integer(match[0], 10, text, position), match.end()

    def word(self, text: str, position: int) -> tuple[Token, int]:
        character = text[position]
        if character == '"':
            string, end = quoted(text, position, '"')
            return Token(CONSTANT, text[position:end], position, string), end
        if character == "[":
            name, end = self._delimited(text, position)
            return Token(NAME, text[position:end], position, name=Identifier(name)), end
        match = _SQL_NAME.match(text, position)
        if match is None:
            raise SelectorError(position, "a literal, an identifier or an operator", text)
        word, end = match[0], match.end()
        if text.startswith(".", end):
            return self._in_section(text, position, word, end + 1)
        upper = word.upper()
        if word in self.words:
            return Token(WORD, word, position), end
        if upper in self.words:
            raise SelectorError(position, f"{upper} in upper case, or [{word}] for the property", text)
        if upper in self.unsupported:
            raise SelectorError(position, f"[{word}] for the property ({upper} is not supported)", text)
        return Token(NAME, word, position, name=Identifier(word)), end

    def name(self, identifier: Identifier) -> str:
        name, section = identifier.name, identifier.section
        plain = _SQL_NAME.fullmatch(name) and (section or name.upper() not in self.words | self.unsupported)
        written = name if plain else "[" + name.replace("[", "[[").replace("]", "]]") + "]"
        return f"{section}.{written}" if section else written

    def _in_section(self, text: str, position: int, word: str, start: int) -> tuple[Token, int]:
        section = SECTIONS.get(word)
        if section is None:
            raise SelectorError(position, f"one of the sections {', '.join(SECTIONS)}", text)
        if text.startswith("[", start):
            name, end = self._delimited(text, start)
        elif match := _SQL_NAME.match(text, start):
            name, end = match[0], match.end()
        else:
            raise SelectorError(start, "the name of a field", text)
        return Token(NAME, text[position:end], position, name=Identifier(name, section)), end

    @staticmethod
    def _delimited(text: str, position: int) -> tuple[str, int]:
        """Return a name in brackets, in which brackets are doubled, and its end."""
        parts: list[str] = []
        index = position + 1
        while index < len(text):
            character = text[index]
            if character in "[]":
                if not text.startswith(character, index + 1):
                    if character == "]":
                        return "".join(parts), index + 1
                    raise SelectorError(index, "[[ for a bracket in a name", text)
                index += 1
            parts.append(character)
            index += 1
        raise SelectorError(len(text), "a closing ]", text)


JMS: Final = JmsLexer()
SQL: Final = SqlLexer()
