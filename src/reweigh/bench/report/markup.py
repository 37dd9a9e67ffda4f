"""What pages are made of besides charts: elements, tables of labelled rows, and pictures.

Text that is not markup is escaped on its way in.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup


def element(name: str, *children: str, **attributes: object) -> Markup:
    """An element; `class_` is written `class`, `data_m` is written `data-m`, and what is None is left out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.strip("_").replace("_", "-"), _number(value))
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup("").join(children))


@dataclass(frozen=True)
class Toned:
    """An entry of a table with the colour of what it concludes: `good`, `bad` or `none`."""

    text: str
    tone: str


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Toned]],
    *,
    names: int = 1,
    label: str | None = None,
    class_: str | None = None,
) -> Markup:
    """A table of labelled rows, in a frame that scrolls sideways where it is too wide; empty without rows.

    Parameters
    ----------
    heads
        The heads of the columns, that of the labels first.
    rows
        The label and the entries of each row. A row with nothing but its label heads the rows below it.
    names
        How many leading entries of a row are labels.
    label
        What the table is, for people who cannot see it.
    class_
        Of the style sheet; `results` keeps the labels in sight while the table is scrolled.
    """
    body: list[Markup] = []
    for row in rows:
        if len(row) == 1:
            body.append(element("tr", element("th", _text(row[0]), scope="rowgroup", colspan=len(heads))))
            continue
        labels = (element("th", _text(entry), scope="row") for entry in row[:names])
        entries = (element("td", _text(e), class_=e.tone if isinstance(e, Toned) else None) for e in row[names:])
        body.append(element("tr", *labels, *entries))
    if not body:
        return Markup("")
    head = element("tr", *(element("th", words, scope="col") for words in heads))
    whole = element("table", element("thead", head), element("tbody", *body), class_=class_)
    scrolled = {} if label is None else {"tabindex": 0, "role": "region", "aria_label": label}
    return element("div", whole, class_="scroll", **scrolled)


def picture(pixels: np.ndarray[Any, Any], *, colours: int, alt: str, style: str) -> Markup:
    """Pixels (uint8, HWC) as an image that is part of the page."""
    return embedded(png(pixels, colours=colours), alt=alt, style=style)


def png(pixels: np.ndarray[Any, Any], *, colours: int) -> str:
    """Pixels (uint8, HWC) as a small PNG file, in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).quantize(colours).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def embedded(png_in_base64: str, *, alt: str, style: str) -> Markup:
    """A PNG file as an image that is part of the page."""
    source = f"data:image/png;base64,{png_in_base64}"
    # An image element has no end tag in XML either: written so, the markup is both.
    return Markup(str(element("img", src=source, alt=alt, style=style)).replace("></img>", " />"))


def _text(entry: str | Toned) -> str:
    return entry.text if isinstance(entry, Toned) else entry


def _number(value: object) -> object:
    """Pixels need one digit after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
