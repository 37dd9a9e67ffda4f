"""The terminal: text of others is shown as it is written and never obeyed."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

#: Characters that a terminal obeys: controls but for line breaks and tabs, and those that turn the writing direction.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class SafeConsole(Console):
    """A console on which names of columns, classes and files cannot move the cursor, set a title or hide a line."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, its control characters made visible."""
        return super().render_str(visible(text), **options)


def visible(text: str) -> str:
    r"""The text with control characters written out.

    Examples
    --------
    >>> print(visible("\x1b[2Jgone"))
    \x1b[2Jgone
    """
    return _OBEYED.sub(lambda match: ascii(match[0])[1:-1], text)


def print_plainly(console: Console, text: str) -> None:
    """Print a text as it is: brackets in a path are no markup, and a path that is cut in two cannot be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
