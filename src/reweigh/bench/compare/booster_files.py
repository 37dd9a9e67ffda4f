"""Boosters that somebody may have crafted: read here, checked, and rewritten for the library that predicts.

LightGBM and XGBoost follow the indices in a model's file without looking: one that points outside its array reads
whatever lies there, and a tree that leads back to itself never ends. So the file is never given to them. What is given
holds the trees that were read from it, and nothing else: every feature exists, every node is reached once, every leaf
has a value, and no tree is deeper than any that training makes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Far more than training makes: 31 leaves, or depth 6.
_DEEPEST, _MOST_NODES, _MOST_TREES, _LARGEST_FILE = 500, 100_000, 100_000, 1 << 30
_OBJECTIVES = {
    "xgboost": {"binary": "binary:logistic", "multiclass": "multi:softprob", "regression": "reg:squarederror"}
}


class BoosterFileError(ValueError):
    """A booster's file does not hold the trees of a model that fits."""


def lightgbm_text(path: Path, *, kind: str, width: int, classes: int) -> str:
    """The model in LightGBM's own format, made of what was read and checked.

    Parameters
    ----------
    path
        The file.
    kind
        `"binary"`, `"multiclass"` or `"regression"`.
    width
        Features of a row.
    classes
        Number of classes; 0 for a regression.
    """
    head, *trees = _text(path).partition("\nend of trees")[0].split("\nTree=")
    outputs = classes if kind == "multiclass" else 1
    if _fields(head).get("max_feature_idx") != str(width - 1) or not 0 < len(trees) <= _MOST_TREES:
        raise BoosterFileError(f"it is not made for {width} features")
    if len(trees) % outputs:
        raise BoosterFileError(f"{len(trees)} trees do not make {outputs} outputs")
    objective = {"binary": "binary sigmoid:1", "multiclass": f"multiclass num_class:{classes}"}.get(kind, "regression")
    lines = [
        "tree", "version=v4", f"num_class={outputs}", f"num_tree_per_iteration={outputs}", "label_index=0",
        f"max_feature_idx={width - 1}", f"objective={objective}",
        "feature_names=" + " ".join(f"f{i}" for i in range(width)), "feature_infos=" + " ".join(["none"] * width), "",
    ]  # fmt: skip
    for number, text in enumerate(trees):
        lines += [f"Tree={number}", *_lightgbm_tree(_fields(text), width), "is_linear=0", "shrinkage=1", "", ""]
    return "\n".join([*lines, "end of trees", ""])


def xgboost_json(path: Path, *, kind: str, width: int, classes: int) -> bytearray:
    """The same for XGBoost; parameters as for `lightgbm_text`."""
    try:
        read = json.loads(_text(path))
        learner = read["learner"]
        model, parameters = learner["gradient_booster"]["model"], learner["learner_model_param"]
        groups, trees, starts = model["tree_info"], model["trees"], model["iteration_indptr"]
        base = parameters["base_score"]
        numbers = base[1:-1].split(",") if base.startswith("[") else [base]
        if not all(math.isfinite(float(number)) for number in numbers):
            raise BoosterFileError("its base score is not a number")
        outputs = classes if kind == "multiclass" else 1
        _demand(0 < len(trees) == len(groups) <= _MOST_TREES, "its trees do not match their list")
        _demand(all(type(g) is int and 0 <= g < outputs for g in groups), "a tree belongs to no output")
        _demand(starts == list(range(0, len(trees) + 1, outputs)), "its rounds do not match its trees")
        _demand(len(numbers) in (1, outputs), "its base score does not match its outputs")
        kept = [_xgboost_tree(tree, number, width) for number, tree in enumerate(trees)]
        version = [int(part) for part in read["version"]]
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise BoosterFileError(f"it is not a model of XGBoost ({error!r})") from None
    name = _OBJECTIVES["xgboost"][kind]
    own: dict[str, Any] = {"name": name}
    if kind == "multiclass":
        own["softmax_multiclass_param"] = {"num_class": str(classes)}
    else:
        own["reg_loss_param"] = {"scale_pos_weight": "1"}
    written = {
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {
                "model": {
                    "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(kept))},
                    "iteration_indptr": starts,
                    "tree_info": groups,
                    "trees": kept,
                },
                "name": "gbtree",
            },
            "learner_model_param": {
                "base_score": base,
                "boost_from_average": "1",
                "num_class": str(classes if kind == "multiclass" else 0),
                "num_feature": str(width),
                "num_target": "1",
            },
            "objective": own,
        },
        "version": version,
    }
    return bytearray(json.dumps(written).encode())


def _text(path: Path) -> str:
    if path.stat().st_size > _LARGEST_FILE:
        raise BoosterFileError(f"it has {path.stat().st_size} bytes")
    return path.read_text()


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def _lightgbm_tree(fields: Mapping[str, str], width: int) -> list[str]:
    leaves = _whole(fields.get("num_leaves", ""), 1, _MOST_NODES)
    _demand(fields.get("num_cat", "0") == "0" and fields.get("is_linear", "0") == "0", "a tree is of another kind")
    values = _numbers(fields, "leaf_value", leaves)
    nodes = leaves - 1
    lines = [f"num_leaves={leaves}", "num_cat=0"]
    if nodes:
        features = [_whole(part, 0, width - 1) for part in _parts(fields, "split_feature", nodes)]
        # Bit 0 marks a split by category; the others say what is done with missing cells.
        decisions = [_whole(part, 0, 14) for part in _parts(fields, "decision_type", nodes)]
        _demand(not any(decision & 1 for decision in decisions), "a tree splits by categories")
        thresholds = _numbers(fields, "threshold", nodes)
        left, right = (
            [_whole(part, -leaves, nodes - 1) for part in _parts(fields, f"{side}_child", nodes)]
            for side in ("left", "right")
        )
        # A child below zero is a leaf; here leaves are numbered after the inner nodes.
        _check_tree(
            {
                k: (a if a >= 0 else nodes + ~a, b if b >= 0 else nodes + ~b)
                for k, (a, b) in enumerate(zip(left, right, strict=True))
            },
            nodes + leaves,
        )
        lines += [
            "split_feature=" + _joined(features),
            "threshold=" + _joined(thresholds),
            "decision_type=" + _joined(decisions),
            "left_child=" + _joined(left),
            "right_child=" + _joined(right),
        ]
    return [*lines, "leaf_value=" + _joined(values)]


def _xgboost_tree(tree: Mapping[str, Any], number: int, width: int) -> dict[str, Any]:
    count = _whole(tree["tree_param"]["num_nodes"], 1, _MOST_NODES)
    listed = ("left_children", "right_children", "split_indices", "default_left", "split_type", "parents")
    arrays: dict[str, list[Any]] = {name: tree[name] for name in listed}
    reals: dict[str, list[Any]] = {
        name: tree[name] for name in ("split_conditions", "base_weights", "sum_hessian", "loss_changes")
    }
    _demand(all(len(values) == count for values in (*arrays.values(), *reals.values())), "a tree's lists differ")
    _demand(all(type(v) is int for values in arrays.values() for v in values), "a tree's index is not whole")
    _demand(all(_finite(v) for values in reals.values() for v in values), "a tree has a value that is not a number")
    left, right = arrays["left_children"], arrays["right_children"]
    _demand(all((a == -1) == (b == -1) for a, b in zip(left, right, strict=True)), "a node has one child")
    _demand(not any(arrays["split_type"]), "a tree splits by categories")
    _demand(all(0 <= feature < width for feature in arrays["split_indices"]), "a tree looks at a feature too many")
    _demand(all(flag in (0, 1) for flag in arrays["default_left"]), "a tree's default is neither left nor right")
    children = {k: (a, b) for k, (a, b) in enumerate(zip(left, right, strict=True)) if a != -1}
    _check_tree(children, count)
    parents = [2**31 - 1] * count
    for node, (a, b) in children.items():
        parents[a] = parents[b] = node
    return {
        **arrays, **reals, "parents": parents, "id": number,
        "categories": [], "categories_nodes": [], "categories_segments": [], "categories_sizes": [],
        "tree_param": {
            "num_deleted": "0", "num_feature": str(width), "num_nodes": str(count), "size_leaf_vector": "1",
        },
    }  # fmt: skip


def _check_tree(children: Mapping[int, tuple[int, int]], count: int) -> None:
    """Every node is reached from the first one, once, and none is too deep."""
    reached, level, depth = {0}, [0], 0
    while level:
        below = [child for node in level for child in children.get(node, ())]
        _demand(all(0 <= child < count for child in below), "a tree leads outside itself")
        _demand(len(set(below)) == len(below) and reached.isdisjoint(below), "a tree leads back to itself")
        reached.update(below)
        level, depth = below, depth + 1
        _demand(depth <= _DEEPEST, "a tree is too deep")
    _demand(len(reached) == count, "a part of a tree is never reached")


def _parts(fields: Mapping[str, str], name: str, count: int) -> list[str]:
    parts = fields.get(name, "").split(" ")
    _demand(len(parts) == count, f"a tree has {len(parts)} values of {name} instead of {count}")
    return parts


def _numbers(fields: Mapping[str, str], name: str, count: int) -> list[float]:
    try:
        numbers = [float(part) for part in _parts(fields, name, count)]
    except ValueError:
        raise BoosterFileError(f"a value of {name} is not a number") from None
    _demand(all(math.isfinite(number) for number in numbers), f"a value of {name} is not a number")
    return numbers


def _whole(text: Any, low: int, high: int) -> int:
    digits = text.removeprefix("-") if isinstance(text, str) else ""
    if not (digits.isascii() and digits.isdigit() and len(digits) < 12 and low <= int(text) <= high):
        raise BoosterFileError(f"{str(text)[:20]!r} stands where a whole number from {low} to {high} should")
    return int(text)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _joined(values: Sequence[float]) -> str:
    return " ".join(map(repr, values))


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BoosterFileError(otherwise)
