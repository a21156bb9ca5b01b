"""What the pages say exists, exists."""

import ast
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


def test_the_page_of_cases_lists_those_that_are_tested() -> None:
    """By number; where a row names tests/ folders alone, each of them has a test of that name."""
    rows = re.findall(r"^\| (\d+) \| .+ \| (.+) \|$", (ROOT / "docs/testing.md").read_text(), re.MULTILINE)
    cases = {int(number): where for number, where in rows[-40:]}
    assert sorted(cases) == list(range(1, 41))
    tested: dict[int, set[str]] = {}
    for path in ROOT.glob("tests/*/test_*.py"):
        for number in re.findall(r"def test_case_(\d+)_", path.read_text()):
            tested.setdefault(int(number), set()).add(path.parent.name)
    told = {number: set(where.split(", ")) for number, where in cases.items() if ": " not in where}
    assert told == tested
    for where in (where for where in cases.values() if ": " in where):
        folder, names = where.split(": ")
        for name in names.split(", "):
            assert list(ROOT.glob(f"{folder}/rows/{name}.py")) or list(ROOT.glob(f"tests/{folder}/{name}.py"))


def test_the_page_of_tests_tells_of_every_torture() -> None:
    told = re.findall(r"python -m tests\.torture\.(\w+)", (ROOT / "docs/testing.md").read_text())
    assert sorted(told) == sorted(
        path.stem for path in ROOT.glob("tests/torture/*.py") if path.stem != "__init__"
    )


def test_the_page_of_awaits_names_tests_that_exist() -> None:
    """Those without a folder are in tests/vfs/test_interleavings.py; "…" stands for any end or beginning."""
    text = (ROOT / "docs/concurrency.md").read_text()
    there = {
        str(path.relative_to(ROOT)): re.findall(r"def (test_\w+)", path.read_text())
        for path in ROOT.glob("tests/*/test_*.py")
    }
    named = 0
    for cell in re.findall(r"[^|]+", text):
        path = "tests/vfs/test_interleavings.py"
        for found in re.findall(r"tests/\w+/test_\w+\.py|`(?:test_|…)[\w…]+`", cell):
            if found.endswith(".py"):
                path = found
                continue
            named += 1
            pattern = re.escape(found.strip("`")).replace("…", r"\w*")
            assert any(re.fullmatch(pattern, name) for name in there[path]), (path, found)
    assert named > 20


def test_the_page_of_awaits_names_every_function_that_waits() -> None:
    """In vfs/ and store/: whatever awaits something of trio's, and not only another of them."""
    text = (ROOT / "docs/concurrency.md").read_text()
    functions = [
        node
        for path in [*ROOT.glob("commitfs/vfs/*.py"), *ROOT.glob("commitfs/store/*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef)
    ]
    ours = {function.name for function in functions}
    waiting = set()
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
                called = node.value.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if name and name not in ours:
                    waiting.add(function.name)
    assert len(waiting) > 10
    assert {name for name in waiting if not re.search(rf"\b{name}\b", text)} == set()


def test_pages_that_are_cited_exist() -> None:
    """In code, tests and pages: whatever is called NAME.md is a page of the project."""
    there = {page.name for page in PAGES}
    sources = [
        *ROOT.glob("commitfs/**/*.[pch]*"),
        *ROOT.glob("tests/**/*.py"),
        *ROOT.glob("benchmarks/**/*.py"),
    ]
    for path in [*(s for s in sources if s.suffix in (".py", ".c", ".h")), *(ROOT / page for page in PAGES)]:
        cited = set(re.findall(r"\b([\w-]+\.md)\b", path.read_text()))
        assert cited <= there | {"NAME.md"}, path


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
