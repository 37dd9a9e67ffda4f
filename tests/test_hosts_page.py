"""The page of hosts is what the tests show."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_hosts_is_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "hosts.py"))
    assert (DOCS / "hosts.md").read_text() == made["page"](), "run python docs/hosts.py > docs/hosts.md"
    assert made["shown"]()["Hugging Face Trainer"]["token weight"] == "✓"
    assert made["shown"]()["Hugging Face Trainer"]["step"] == "refused"
