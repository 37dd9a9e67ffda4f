"""Sphinx: MyST pages, the furo theme, docstrings as method cards, and formulas as MathML.

Nothing in the built pages asks the network for anything.
"""

from __future__ import annotations

import ast
import html
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

import reweigh

# The library is imported to read its docstrings; some machines advertise instructions they cannot execute.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Keras would look for TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "torch")

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
import gallery  # noqa: E402

PACKAGE = DOCS.parent / "src" / "reweigh"

project = "reweigh"
author = "The reweigh developers"
project_copyright = author
version = release = reweigh.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# Notebooks are text; they are executed by every build, and a cell that fails ends it.
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
nb_output_stderr = "remove"  # advice and progress of other libraries
# Single backticks in docstrings are code.
default_role = "code"

napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = "reweigh"
html_static_path = ["static"]
html_css_files = ["reweigh.css"]
html_extra_path = ["llms.txt"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

log = logging.getLogger(__name__)


# --- one page per slot, from the folders themselves: a new file is on its page with the next build ---

SLOTS = {
    "objectives": ("objectives", "Objectives", "What is descended: per-unit losses in, one number out."),
    "losses": ("torch/losses", "Losses", "How wrong each unit is: one loss per unit, never averaged."),
    "steps": ("torch/steps", "Steps", "How parameters move once there is a loss."),
    "averages": ("torch/averages", "Averages", "What is kept of the parameters over time."),
    "post": ("post", "Corrections after training", "What is done to outputs, fitted on validation rows."),
    "samplers": ("torch/samplers", "Samplers", "Which examples are drawn."),
    "integrations": ("integrations", "Integrations", "Adapters to trainers people already use."),
}

#: Adapters that are imported by programs the documentation is built without; their page shows what to write.
WITH_PROGRAMS = ("axolotl", "llamafactory", "swift", "torchtune")


def public_names(source: Path) -> list[tuple[str, str]]:
    """What a module offers, as (directive, name): its `__all__`, or else what has no underscore."""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    kinds: dict[str, str] = {}
    listed: list[str] | None = None
    for node in body:
        if isinstance(node, ast.ClassDef):
            kinds[node.name] = "autoclass"
        elif isinstance(node, ast.FunctionDef):
            kinds[node.name] = "autofunction"
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            listed = list(ast.literal_eval(node.value))
    names = [name for name in kinds if not name.startswith("_")] if listed is None else listed
    return [(kinds[name], name) for name in names if name in kinds]


def slot_page(folder: str, title: str, line: str) -> str | None:
    """The page of one folder, or None while the folder has no methods."""
    sources = [path for path in sorted((PACKAGE / folder).glob("*.py")) if not path.name.startswith("_")]
    if folder == "integrations":
        sources = [path for path in sources if path.stem not in WITH_PROGRAMS]
        line = f"{line} Those for axolotl, LLaMA-Factory, ms-swift and torchtune: {{doc}}`../integrations/llm_hosts`."
    if not sources:
        return None
    parts = [f"# {title}\n\n{line} One file each; the file name is the method's name.\n"]
    for source in sources:
        module = ".".join(["reweigh", *Path(folder).parts, source.stem])
        cards = "\n".join(f".. {directive}:: {module}.{name}\n" for directive, name in public_names(source))
        parts.append(f"## `{source.stem}`\n\n```{{eval-rst}}\n{cards}```\n")
    return "\n".join(parts)


def write_generated_pages(app: Sphinx) -> None:
    """Write docs/generated, touching only what changed so that a second build is quick."""
    generated = DOCS / "generated"
    generated.mkdir(exist_ok=True)
    pages = {f"{name}.md": slot_page(*slot) for name, slot in SLOTS.items()}
    pages["gallery.md"] = gallery.page()
    pages |= {f"gallery/{name}.svg": picture for name, picture in gallery.pictures().items()}
    (generated / "gallery").mkdir(exist_ok=True)
    for old in [*generated.glob("*.md"), *generated.glob("gallery/*.svg")]:
        if pages.get(str(old.relative_to(generated))) is None:
            old.unlink()
    for name, text in pages.items():
        path = generated / name
        if text is not None and (not path.exists() or path.read_text(encoding="utf-8") != text):
            path.write_text(text, encoding="utf-8")


# --- formulas as MathML: every current browser draws it, without scripts, fonts or a network ---


def _mathml(tex: str, node: nodes.Element, *, block: bool) -> str:
    # The converter does not know sizes and styles, which a browser chooses well enough by itself.
    tex = re.sub(r"\\(?:(?:bigg?|Bigg?)[lrm]?|textstyle|displaystyle)(?![A-Za-z])", "", tex)
    tex = re.sub(r"\\dots[cbmio]?(?![A-Za-z])", lambda _: r"\ldots", tex)
    try:
        return str(tex2mathml(tex, as_block=block))
    except MathError as error:
        log.warning("formula cannot be drawn: %s in %s", error, tex, location=node)
        return f"<code>{html.escape(tex)}</code>"


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(_mathml(node.astext(), node, block=False))
    raise nodes.SkipNode


def _display(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{_mathml(node.astext(), node, block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the hooks of this file."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_display, None))
    app.connect("builder-inited", write_generated_pages)
