"""Maps the name in a client's certificate to its principal (`ssl.principal.mapping.rules`).

    RULE:^CN=(.*?),.*$/$1/L , RULE:^.*$/other/ , DEFAULT

Rules are tried in order. The first rule whose pattern matches the whole name determines the principal's name, in which
`$1` stands for a group. `L` and `U` make it lower or upper case. DEFAULT keeps the name as it is. Patterns are those of
re2, so that no name is slow to match. Source: Kafka's `SslPrincipalMapper`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

_SPLIT: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(,|$)", re.DOTALL)


class MappingError(ValueError):
    """Rules can't be read. The message continues after the name of their key."""


class Rule(msgspec.Struct, frozen=True):
    """A mapping rule. Without a pattern it is DEFAULT."""

    pattern: Any = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Returns the principal's name, or None if the rule doesn't match."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        found = re.sub(r"\$(\d)", lambda group: match.group(int(group[1])) or "", self.replacement)
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Reads rules. Errors: MappingError."""
    rules: list[Rule] = []
    position = 0
    text = text.strip() or "DEFAULT"
    while position < len(text):
        match = _SPLIT.match(text, position)
        if match is None:
            raise MappingError(
                f"allowed is a list of DEFAULT and RULE:pattern/replacement/[LU], and {text[position:]!r} is neither"
            )
        rules.append(Rule() if match[1] else _rule(match[2], match[3], match[4]))
        position = match.end()
    return tuple(rules)


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    """Makes a rule. Errors: MappingError."""
    import re2  # noqa: PLC0415 - 8 ms and 3 MB, which a broker without TLS does not need.

    try:
        compiled = re2.compile(pattern)
    except re2.error as error:
        raise MappingError(f"the pattern {pattern!r} can't be read") from error
    groups = [int(number) for number in re.findall(r"\$(\d)", replacement)]
    if max(groups, default=0) > compiled.groups:
        raise MappingError(f"{replacement!r} names a group that the pattern {pattern!r} doesn't have")
    return Rule(compiled, replacement, case)


def principal_name(rules: Sequence[Rule], name: str) -> str | None:
    """Returns the principal's name for a certificate's name, or None if no rule matches."""
    return next((found for rule in rules if (found := rule.apply(name)) is not None), None)
