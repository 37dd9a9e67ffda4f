"""Settings that must be in place before any framework is imported."""

import os

# bf16 matrix products kill the process on machines that advertise AMX but cannot execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Small models: one thread each, so that parallel test workers do not wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")
# Keras would look for TensorFlow.
os.environ.setdefault("KERAS_BACKEND", "torch")
# Models and tokenizers of the tests are made from their configuration; nothing is looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Compilers import setuptools, which must come before the distutils it replaces; other packages import that one.
import contextlib
import random
import sys
from pathlib import Path

with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401  # pyright: ignore[reportUnusedImport]

import numpy
import pytest
from hypothesis import HealthCheck, settings

# A property that holds should not fail for being slow to try, which on a busy machine everything is.
settings.register_profile(
    "reweigh", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("reweigh")

_HERE = Path(__file__).parent


#: What takes long for what it tells while one edits: hosts, compilers, browsers, and the families of experiments.
_THOROUGH = (
    "integrations/",
    "objectives/test_tracing.py",
    "bench/report/test_report_browser.py",
    "bench/catalogue/test_domains.py",
    "bench/catalogue/test_pretrained.py",
    "bench/catalogue/test_tables.py",
    "bench/catalogue/test_texts.py",
    "bench/lab/test_optuna.py",
    "bench/lab/test_ray.py",
    "bench/recipes/domains/",
    "bench/recipes/meta/",
    "bench/recipes/tabular/",
    "bench/recipes/text/",
    "bench/train/test_distributed.py",
    "bench/train/test_input.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` leaves out by where it lies."""
    for item in items:
        if item.path.is_relative_to(_HERE) and item.path.relative_to(_HERE).as_posix().startswith(_THOROUGH):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True)
def same_draws_in_any_order() -> None:
    """Seed the global generators, so that what a test draws does not depend on the tests before it."""
    random.seed(0)
    numpy.random.seed(0)  # noqa: NPY002  # what libraries draw from
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def as_many_threads_as_asked_for() -> None:
    """Take back what a test before this one may have told torch."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
