"""A cache of the test's own: no weights, and nothing kept of earlier folders of photos; and small data to read."""

import numpy as np
import pytest
from people_table import people


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REWEIGH_DATA", raising=False)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    people().write_csv(path)
    return str(path)


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    draw = np.random.default_rng(0)
    for name, count in (("cat", 12), ("dog", 8)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 255, (9, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"
