"""The page in a real browser: opened, its controls used, looked at."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path

import children
import numpy as np
import pytest
from PIL import Image
from synthetic_runs import make_recipe, make_runs, make_table

from reweigh.bench import report
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.results import collect
from reweigh.bench.lab.table import Column

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

#: Uses every control as a person would, and leaves what it saw in the title.
SCRIPT = """
<script>
const log = [];
const say = (name, value) => log.push(name + "=" + value);
const shown = (selector) =>
  Array.from(document.querySelectorAll(selector)).filter((e) => e.getClientRects().length).length;
const order = () => Array.from(document.querySelectorAll("table.results tbody tr")).map((r) => r.dataset.m).join("");
const click = (selector) => document.querySelector(selector).click();
say("last", shown("td .last"));
click('[data-show="last"]');
say("last", shown("td .last"));
say("tuned", shown("td .tuned"));
click('[data-show="tuned"]');
say("tuned", shown("td .tuned"));
say("rows", shown("table.results tbody tr"));
say("forest", shown(".forest li[data-m]"));
click("[data-main]");
say("rows", shown("table.results tbody tr"));
say("forest", shown(".forest li[data-m]"));
say("lines", shown("svg .line.other"));
click("[data-main]");
say("rows", shown("table.results tbody tr"));
click('[data-method="m2"]');
say("rows", shown("table.results tbody tr"));
click('[data-method="m2"]');
click('[data-sort="1"]');
say("down", order());
document.querySelector('[data-sort="1"]').dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
say("up", order());
click('[data-sort="0"]');
say("own", order());
say("wide", document.documentElement.scrollWidth <= window.innerWidth);
document.title = log.join(";");
</script>
"""


def chromium(folder: Path, *arguments: str) -> str:
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage"),
        f"--user-data-dir={folder / 'profile'}",
        *arguments,
    ]
    done = children.run(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_script(text: str, script: str) -> str:
    """A page with a script at its end that its policy allows."""
    own = script.strip().removeprefix("<script>").removesuffix("</script>")
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    text = text.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ", 1)
    return text.replace("</body>", f"{script}</body>")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    columns = tuple(Column(name=f"imbalance {k:g}", settings={"imbalance": k}) for k in (1.0, 10.0, 100.0))
    table = make_table(columns=columns)
    make_runs(folder / "runs", table, seeds=3, epochs=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "load", lambda name: make_recipe(table))
        return report.write(collect(folder / "runs"), folder / "page.html")


def test_no_script_runs_but_the_pages_own(page: Path):
    """As if a name had been placed in the page as it is: the browser refuses to run it, or to load anything."""
    copy = page.with_name("foreign.html")
    foreign = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    copy.write_text(page.read_text().replace("</body>", foreign + "</body>"))
    dom = chromium(page.parent, "--dump-dom", copy.as_uri())
    assert "<title>owned</title>" not in dom
    copy.write_text(copy.read_text().replace("Content-Security-Policy", "No-Policy"))
    assert "<title>owned</title>" in chromium(page.parent, "--dump-dom", copy.as_uri())


def test_controls_work(page: Path):
    copy = page.with_name("controls.html")
    copy.write_text(with_script(page.read_text(), SCRIPT))
    dom = chromium(page.parent, "--window-size=1200,900", "--dump-dom", copy.as_uri())
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title
    seen: dict[str, list[str]] = {}
    for part in title[1].split(";"):
        name, _, value = part.partition("=")
        seen.setdefault(name, []).append(value)
    entries = 7 * 3
    assert seen["last"] == ["0", str(entries)]
    assert seen["tuned"] == [str(entries), "0"]
    assert seen["rows"] == ["7", "4", "7", "6"]
    assert seen["forest"] == [str(6 * 3), str(3 * 3)]
    assert seen["lines"] == ["0"]
    assert seen["wide"] == ["true"]
    means = {
        f"m{i}": float(re.findall(r'data-value="(0\.\d+)"', row)[0])
        for i, row in enumerate(re.findall(r'<tr data-m="m\d".*?</tr>', page.read_text(), re.S))
    }
    by_mean = "".join(sorted(means, key=lambda key: -means[key]))
    assert seen["down"] == [by_mean]
    assert seen["up"] == ["".join(sorted(means, key=lambda key: means[key]))]
    assert seen["own"] == ["m0m1m2m3m4m5m6"]


def test_everything_is_readable_without_scripts(page: Path):
    copy = page.with_name("plain.html")
    copy.write_text(with_script(re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S), COUNT))
    dom = chromium(page.parent, "--dump-dom", copy.as_uri())
    assert "<title>21 21 0</title>" in dom


#: Without the page's own script: last-epoch numbers and settings are shown, dead controls are not.
COUNT = """
<script>
const shown = (selector) =>
  Array.from(document.querySelectorAll(selector)).filter((e) => e.getClientRects().length).length;
document.title = [shown("td .last"), shown("td .tuned"), shown("form.controls")].join(" ");
</script>
"""


@pytest.mark.parametrize(("width", "dark"), [(1240, False), (1240, True), (500, False)])
def test_screenshots_have_the_page_on_them(page: Path, width: int, dark: bool):
    shot = page.with_name(f"shot-{width}-{dark}.png")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    chromium(page.parent, f"--window-size={width},700", f"--screenshot={shot}", *scheme, page.as_uri())
    with Image.open(shot) as opened:
        image = np.asarray(opened.convert("RGB"))
    assert image.shape[:2] == (700, width)
    light = image.mean(-1)
    paper, ink = (light < 60, light > 200) if dark else (light > 240, light < 90)
    assert paper.mean() > 0.6
    assert 0.005 < ink.mean() < 0.3
    colours = image.reshape(-1, 3)
    blue = (colours[:, 2].astype(int) - colours[:, 0]) > 80  # the mark beside the verdict
    assert blue.sum() > 200


def test_prints_to_a_few_pages(page: Path):
    printed = page.with_name("page.pdf")
    chromium(page.parent, "--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri())
    text = printed.read_bytes()
    assert text.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", text)) <= 14
