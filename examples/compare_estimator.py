"""Does re-weighting help a scikit-learn estimator on your rows? Every seed splits them again.

python examples/compare_estimator.py
"""

from __future__ import annotations

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import reweigh


def main(seeds: int = 20) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X[:, :5])
    result = reweigh.compare(
        LogisticRegression(), X, y, methods=["rgd", "rgd:tau=3"], seeds=seeds, out="out/compare_estimator"
    )
    print(result.verdict)
    print("report:", result.page)


if __name__ == "__main__":
    main()
