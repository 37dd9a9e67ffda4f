"""A cache of the test's own: no weights, and nothing kept of earlier folders of photos."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REWEIGH_DATA", raising=False)
