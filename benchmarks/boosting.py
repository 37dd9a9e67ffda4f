"""What re-weighting costs a booster: one round with it against one round of the built-in objective.

    python benchmarks/boosting.py [--rows 100000] [--features 50] [--out benchmarks/results/boosting.json]

Both take turns in one process on one thread, in processor time; the lower quartile of the turns is reported, and its
ratio to the built-in objective. XGBoost and LightGBM are timed round by round; CatBoost, which offers no single rounds,
by whole short trainings, with one call into Python a block of rows, or a row (multi-class, on fewer rows).
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import catboost as cb
import lightgbm as lgb
import numpy as np
import xgboost as xgb
from _timing import Call, console, in_turns, table, write

from reweigh.integrations import boosting

#: Rows of CatBoost's multi-class setting: its objective is asked row by row.
FEW = 2000
ROUNDS = 5


def data(rows: int, features: int, task: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features)).astype(np.float32)
    score = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=rows)
    if task == "regression":
        return X, score
    return X, np.digitize(score, [0.5] if task == "binary" else [-1.0, 0.0, 1.0]).astype(np.float64)


def xgboost_rounds(X: np.ndarray, y: np.ndarray, task: str) -> dict[str, Call]:
    rows = xgb.DMatrix(X, y)
    params = {"nthread": 1, **boosting.xgboost_params(y, task)}

    def rounds(objective: Callable | None) -> Call:
        booster, done = xgb.Booster(params, [rows]), iter(range(10**6))
        return lambda: booster.update(rows, next(done), objective)

    return {"built-in": rounds(None), "re-weighted": rounds(boosting.xgboost(task, tau=1.0))}


def lightgbm_rounds(X: np.ndarray, y: np.ndarray, task: str) -> dict[str, Call]:
    native = {"binary": "binary", "multiclass": "multiclass", "regression": "regression"}[task]
    params = {"verbose": -1, "num_threads": 1} | ({"num_class": 4} if task == "multiclass" else {})

    def rounds(objective: Callable | None) -> Call:
        init = None if objective is None else boosting.init_score(y, task)
        rows = lgb.Dataset(X, y, init_score=init, params={"verbose": -1})
        booster = lgb.Booster(params | {"objective": native if objective is None else "none"}, rows)
        return lambda: booster.update(fobj=objective)

    return {"built-in": rounds(None), "re-weighted": rounds(boosting.lightgbm(task, tau=1.0))}


def catboost_trainings(X: np.ndarray, y: np.ndarray, task: str) -> dict[str, Call]:
    options = {"iterations": ROUNDS, "learning_rate": 0.1, "thread_count": 1, "verbose": False}
    options |= {"allow_writing_files": False, "leaf_estimation_iterations": 1, "boosting_type": "Plain"}
    kind = "Regressor" if task == "regression" else "Classifier"
    plain, reweighted = getattr(cb, f"CatBoost{kind}"), getattr(boosting, f"RGDCatBoost{kind}")
    return {
        "built-in": lambda: plain(**options).fit(X, y),
        "re-weighted": lambda: reweighted(tau=1.0, **options).fit(X, y),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=8.0, help="time spent on each setting")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/boosting.json"))
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*numba.*")
    libraries = {"xgboost": xgboost_rounds, "lightgbm": lightgbm_rounds, "catboost": catboost_trainings}
    results, lines = [], []
    for library, calls in libraries.items():
        for task in ("binary", "multiclass", "regression"):
            rows = min(args.rows, FEW) if (library, task) == ("catboost", "multiclass") else args.rows
            times = in_turns(calls(*data(rows, args.features, task), task), args.seconds, turns=(5, 60))
            ratio = times["re-weighted"] / times["built-in"]
            each = {name: value / 1e3 / (ROUNDS if library == "catboost" else 1) for name, value in times.items()}
            results.append({"library": library, "task": task, "rows": rows, "milliseconds": each, "ratio": ratio})
            lines.append([f"{library} {task} {rows:,}", *(f"{each[n]:.1f}" for n in times), f"{ratio:.2f}"])
    console().print(table("one round, milliseconds of processor time", ["", "built-in", "re-weighted", "ratio"], lines))
    write(
        args.out,
        ["numpy", "lightgbm", "catboost"],
        {"features": args.features, "xgboost": xgb.__version__} | {"results": results},
    )


if __name__ == "__main__":
    main()
