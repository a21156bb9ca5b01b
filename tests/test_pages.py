"""What the pages say exists, exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mounted import ROOT, environment

PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page.parent / link).exists()] == []


@pytest.mark.parametrize("promise", [f"P{number}" for number in range(1, 10)])
def test_every_promise_is_held_by_a_test_that_names_it(promise: str) -> None:
    assert re.search(rf"^## {promise} ", (ROOT / "docs/semantics.md").read_text(), re.MULTILINE)
    others = (path for path in ROOT.glob("tests/*/test_*.py"))
    assert any(re.search(rf"\b{promise}\b", path.read_text()) for path in others)


def test_the_readme_names_the_commands_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "commitfs", "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    there = set(re.findall(r"^  (\w+) ", done.stdout.split("Commands:")[1], re.MULTILINE))
    named = set(re.findall(r"commitfs (\w+) [A-Z]", (ROOT / "README.md").read_text()))
    assert named == there
