"""A small table of people, for tests of how data is read and dealt out."""

import numpy as np
import polars as pl


def people(n=200):
    draw = np.random.default_rng(0)
    age = draw.integers(18, 80, n)
    return pl.DataFrame(
        {
            "age": age,
            "city": draw.choice(["Rom", "Bonn", "Oslo"], n),
            "income": np.where(age + draw.normal(0, 10, n) > 50, "high", "low"),
            "salary": age * 1000.0 + draw.normal(0, 100, n),
        }
    )
