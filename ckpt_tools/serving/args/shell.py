"""Shell text as commands: words with their lines, assignments, no execution.

Quotes, escapes, continuations, comments, variables set before, and redirections are understood; loops,
functions and substitutions are left as they stand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Word:
    """One word of a command and the 1-based line that it begins on."""

    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A simple command: its own assignments, its words, and the variables that were exported before it."""

    words: tuple[Word, ...]
    assignments: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)


_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_REDIRECT = re.compile(r"\d*(>>|>\||>&|<<<|<&|<>|>|<)|&>>?")
_SEPARATORS = (";;", "&&", "||", ";", "|&", "|", "&", "\n", "(", ")")
_KEYWORDS = frozenset(
    {"then", "do", "else", "if", "while", "until", "!", "{", "time", "exec", "nohup", "command"}
)


class _Lexer:
    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line
        self.variables: dict[str, str] = {}

    def commands(self) -> list[Command]:
        out: list[Command] = []
        exported: dict[str, str] = {}
        words: list[Word] = []
        while self.at < len(self.text):
            separator = self._separator()
            if separator is not None:
                self._finish(words, exported, out)
                words = []
                continue
            if self._skip_blank():
                continue
            if redirect := _REDIRECT.match(self.text, self.at):
                self.at = redirect.end()
                self._skip_blank()
                if redirect.group(1) not in (">&", "<&") or not self._descriptor():
                    self._word()
                continue
            line = self.line
            words.append(Word(self._word(), line))
        self._finish(words, exported, out)
        return out

    def _finish(self, words: list[Word], exported: dict[str, str], out: list[Command]) -> None:
        while words and words[0].text in _KEYWORDS:
            words = words[1:]
        assignments: dict[str, str] = {}
        while words and (hit := _ASSIGNMENT.fullmatch(words[0].text)):
            old = self.variables.get(hit[1], "") if hit[2] else ""
            assignments[hit[1]] = old + hit[3]
            words = words[1:]
        if not words:
            self.variables.update(assignments)
            exported.update({k: v for k, v in assignments.items() if k in exported})
            return
        if words[0].text in ("export", "declare", "local", "readonly"):
            for word in words[1:]:
                if hit := _ASSIGNMENT.fullmatch(word.text):
                    self.variables[hit[1]] = hit[3]
                    exported[hit[1]] = hit[3]
                elif word.text in self.variables:
                    exported[word.text] = self.variables[word.text]
            return
        out.append(Command(tuple(words), assignments, dict(exported)))

    def _separator(self) -> str | None:
        if self.text.startswith("&>", self.at):
            return None
        for separator in _SEPARATORS:
            if self.text.startswith(separator, self.at):
                self.at += len(separator)
                self.line += separator == "\n"
                return separator
        return None

    def _skip_blank(self) -> bool:
        """Blanks, continuations and comments."""
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = self.text.index("\n", self.at) + 1
                self.line += 1
            elif char in " \t\r":
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                break
        return self.at > start

    def _descriptor(self) -> bool:
        hit = re.compile(r"\d+|-").match(self.text, self.at)
        if hit:
            self.at = hit.end()
        return hit is not None

    def _word(self) -> str:
        out: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self.at = self.text.index("\n", self.at) + 1
                self.line += 1
            elif char in " \t\r\n;|&()<>":
                break
            elif char == "\\":
                out.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char == "'":
                out.append(self._until("'"))
            elif char == '"':
                out.append(self._double())
            elif char == "$":
                out.append(self._variable())
            elif char == "`":
                out.append("`" + self._until("`") + "`")
            else:
                out.append(char)
                self.at += 1
        return "".join(out)

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        end = len(self.text) if end < 0 else end
        inside = self.text[self.at + 1 : end]
        self.line += inside.count("\n")
        self.at = end + 1
        return inside

    def _double(self) -> str:
        out: list[str] = []
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                following = self.text[self.at + 1]
                self.line += following == "\n"
                out.append("" if following == "\n" else following)
                self.at += 2
            elif char == "$":
                out.append(self._variable())
            else:
                self.line += char == "\n"
                out.append(char)
                self.at += 1
        self.at += 1
        return "".join(out)

    def _variable(self) -> str:
        """A variable's value where it was set above; its own text otherwise."""
        start = self.at
        rest = self.text[self.at + 1 :]
        if rest.startswith("("):
            return self._substitution()
        if rest.startswith("{"):
            end = self.text.find("}", self.at)
            if end < 0:
                end = len(self.text) - 1
            inside = self.text[self.at + 2 : end]
            self.at = end + 1
            name, _, default = inside.partition(":-")
            if _NAME.fullmatch(name):
                fallback = default if ":-" in inside else self.text[start : self.at]
                return self.variables.get(name, fallback)
            return self.text[start : self.at]
        hit = _NAME.match(rest)
        if hit is None:
            self.at += 1
            return "$"
        self.at += 1 + hit.end()
        return self.variables.get(hit.group(), self.text[start : self.at])

    def _substitution(self) -> str:
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            depth += (char == "(") - (char == ")")
            self.line += char == "\n"
            self.at += 1
            if char == ")" and depth == 0:
                break
        return self.text[start : self.at]


def commands(text: str, line: int = 1) -> list[Command]:
    """The simple commands of a shell text, in order.

    Args:
        line: Line number of the text's first line.
    """
    return _Lexer(text, line).commands()
