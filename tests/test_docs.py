"""The documentation tells the truth: its code runs, prints what it says, and its links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import runpy
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from reweigh.objectives import Objective

ROOT = Path(__file__).parent.parent
#: Written by hand; `generated` and `_build` are made from the sources.
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if not {"generated", "_build"} & set(page.parts)),
]
COMMUNITY = [
    ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "RELEASING.md")
]
#: What a block may import that is not always installed.
FRAMEWORKS = (
    *("torch", "jax", "scipy", "sklearn", "pandas", "optax", "flax", "keras", "lightning", "skorch"),
    *("transformers", "trl", "accelerate", "datasets", "xgboost", "lightgbm", "catboost", "tensorboard"),
)


class Block(NamedTuple):
    line: int
    code: str
    output: str | None  # what the page says it prints


def blocks_of(text: str) -> list[Block]:
    """The python blocks of a page, each with the text block that directly follows it."""
    pattern = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
    return [Block(text[: m.start()].count("\n") + 2, m.group(1), m.group(2)) for m in pattern.finditer(text)]


def needs(code: str) -> set[str]:
    """The optional packages that a block uses."""
    pattern = r"^\s*(import|from) {0}\b|\breweigh\.(integrations\.)?{0}\b"
    return {name for name in FRAMEWORKS if re.search(pattern.format(name), code, re.MULTILINE)}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(page: Path) -> list[Block]:
    """Execute a page's blocks in one namespace and compare what they print; returns those that ran."""
    namespace: dict[str, Any] = {"__name__": "page"}
    ran: list[Block] = []
    for block in blocks_of(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        # Blank lines in front, so that a traceback names the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if block.output is not None:
            assert printed.getvalue().rstrip() == block.output.rstrip(), f"{page.name}, line {block.line}"
        ran.append(block)
    return ran


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_runs_and_prints_what_the_page_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    needed = {name for block in blocks_of(text) for name in needs(block.code)}
    missing = sorted(name for name in needed if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, not installed")
    with warnings.catch_warnings():
        if page.parent.name == "integrations":  # frameworks greet a small run with advice of their own
            warnings.simplefilter("ignore")
        ran = run(page)
    assert len(ran) == text.count("\n```python\n")


def test_what_a_page_needs_is_found() -> None:
    assert needs("import jax.numpy as jnp\nfrom torch import nn\n") == {"jax", "torch"}
    assert needs("from reweigh.integrations.keras import Reweighted\nreweigh.torch.Reweighted") == {"keras", "torch"}
    assert needs("numbers from keras, said in prose") == set()


def test_readme_is_short_and_starts_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert len(blocks_of(text)) >= 3
    commands = re.findall(r"^(make \w+|reweigh \w+|pip install)", text, re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]
    assert text.index("reweigh compare") < text.index("reweigh.rgd(")


def test_llms_txt_names_the_pages() -> None:
    """The index for tools links every page that a person wrote, and nothing that is not there."""
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w/]+\.md)\)", text))
    assert linked == {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]} - {"index.md"}


def test_a_false_output_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md, line 2"):
        run(page)


def links_of(text: str) -> list[str]:
    """Targets of Markdown links, images and `{doc}` roles, code left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", prose)
    targets += re.findall(r'<img [^>]*src="([^"]+)"', prose)
    return targets + [f"{name}.md" for name in re.findall(r"\{doc\}`([\w./]+)`", prose)]


@pytest.mark.parametrize("page", [*PAGES, *COMMUNITY], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links_of(page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://", "#")):
            continue
        assert (page.parent / target.split("#")[0]).exists(), f"{page.name} links to {target}"


def test_links_are_found_at_all() -> None:
    assert links_of("see [a](x.md), ![b\nc](y.svg) and {doc}`z`") == ["x.md", "y.svg", "z.md"]
    readme = links_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "docs/images/weights.svg" in readme


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md"], ids=lambda page: page.name
)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    assert named <= targets


SLOTS = {
    "objectives": "objectives",
    "losses": "torch/losses",
    "steps": "torch/steps",
    "averages": "torch/averages",
    "post": "post",
    "samplers": "torch/samplers",
}


@pytest.mark.parametrize("slot", SLOTS)
def test_the_family_page_lists_the_folders(slot: str) -> None:
    """Each slot's list on the page names the files of its folder that are methods, and nothing else."""
    text = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")
    section = re.search(rf"<!-- {slot} -->\n(.*?)\n\n", text, re.DOTALL)
    assert section is not None
    pattern = r"^\| `(\w+)`" if slot == "objectives" else r"`(\w+)`"
    named = set(re.findall(pattern, section.group(1), re.MULTILINE))
    files = {path.stem for path in (ROOT / "src/reweigh" / SLOTS[slot]).glob("*.py") if not path.name.startswith("_")}
    assert named == files


def test_the_family_page_tells_exact_objectives_from_the_others() -> None:
    text = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 10
    for name, exact in rows:
        module = importlib.import_module(f"reweigh.objectives.{name}")
        (kind,) = [c for c in vars(module).values() if is_own_objective(c, module.__name__)]
        assert kind().separable == exact.startswith("yes"), name


def is_own_objective(value: Any, module: str) -> bool:
    return isinstance(value, type) and issubclass(value, Objective) and value.__module__ == module


def test_the_workflow_calls_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    called = set(re.findall(r"make ([a-z-]+(?: [a-z-]+)*)", workflow))
    targets = {target for line in called for target in line.split()}
    assert {"lint", "test", "test-oldest", "test-device", "docs", "dist"} <= targets
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize(
    "path",
    [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / ".readthedocs.yaml"],
    ids=named,
)
def test_settings_for_hosts_are_valid_yaml(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    pytest.importorskip("matplotlib")
    return runpy.run_path(str(ROOT / "docs" / "figures.py"))


def test_figures_are_drawn_and_committed(figures: dict[str, Any], tmp_path: Path) -> None:
    drawn = figures["draw"](tmp_path)
    assert {path.name for path in drawn} == {path.name for path in (ROOT / "docs" / "images").glob("*.svg")}
    for path in drawn:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_worst_case_of_the_figure_against_a_convex_solver(figures: dict[str, Any]) -> None:
    cp = pytest.importorskip("cvxpy")
    losses = np.array([0.1, 0.4, 0.9, 2.3])
    mass = figures["worst_case"](losses, 0.25)
    q = cp.Variable(4)
    ball = cp.sum(cp.rel_entr(q, np.full(4, 0.25))) <= 0.25
    best = cp.Problem(cp.Maximize(losses @ q), [cp.sum(q) == 1, q >= 0, ball]).solve()
    assert mass.sum() == pytest.approx(1.0)
    assert mass @ losses == pytest.approx(best, abs=1e-5)


@pytest.mark.processes
def test_documentation_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, "docs", str(tmp_path / "html")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in (tmp_path / "html").rglob("*.html")]
    assert len(pages) > 8
    for page in pages:  # readable without a network
        assert not re.search(r'<(?:script|img|link)[^>]+(?:src|href)="(?:https?:)?//', page)
