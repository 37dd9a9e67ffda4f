"""Self-supervision for tables, as scikit-learn transformers, and the estimators it is compared with.

Each transformer learns from unlabelled rows of numbers (`fit`) and turns rows into features (`transform`), so that it
stands in a pipeline in front of any classifier. All of them take an `objective`: `"mean"` is the published method,
`"rgd:tau=1"` re-weights its rows by how badly they are reconstructed or recognised.

Importing this package needs torch and scikit-learn, and no other package of the extra `bench`.

Examples
--------
>>> from sklearn.datasets import load_iris
>>> from sklearn.linear_model import LogisticRegression
>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.preprocessing import StandardScaler
>>> X, y = load_iris(return_X_y=True)
>>> met_s = METS(embedding=7, blocks=1, epochs=2, lr=1e-3, objective="rgd:tau=1", random_state=0)
>>> model = make_pipeline(StandardScaler(), met_s, LogisticRegression(max_iter=1000)).fit(X, y)
>>> model[:-1].transform(X).shape
(150, 32)
"""

from reweigh.bench.recipes.algorithms.tabular.dacl import DACL
from reweigh.bench.recipes.algorithms.tabular.gbdt import GBDT
from reweigh.bench.recipes.algorithms.tabular.met import MET
from reweigh.bench.recipes.algorithms.tabular.met_r import METR
from reweigh.bench.recipes.algorithms.tabular.met_s import METS
from reweigh.bench.recipes.algorithms.tabular.mlp import RawColumns
from reweigh.bench.recipes.algorithms.tabular.rf import RandomForest
from reweigh.bench.recipes.algorithms.tabular.rf_g import RandomFourier
from reweigh.bench.recipes.algorithms.tabular.subtab import SubTab
from reweigh.bench.recipes.algorithms.tabular.tabnet import TabNet
from reweigh.bench.recipes.algorithms.tabular.vime import VIME

__all__ = [
    "METS",
    "MET",
    "METR",
    "VIME",
    "DACL",
    "SubTab",
    "TabNet",
    "RandomFourier",
    "RawColumns",
    "RandomForest",
    "GBDT",
]
