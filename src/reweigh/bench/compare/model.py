"""A trained model as a folder: weights or a booster's own file, and the preprocessing as plain data. Never a pickle.

```
model/
    README.md            the model card, for people
    model.json           what it is, what it was trained on, how rows become numbers, and the hash of every other file
    weights.safetensors  of a network
    booster.txt          of LightGBM (.json for XGBoost)
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import special
from torch import nn

import reweigh
from reweigh import post
from reweigh.bench import models, tables
from reweigh.bench.catalogue.images import image_folder
from reweigh.bench.compare import booster_files, manifest, model_card, recipe, text_folder
from reweigh.bench.compare.dealing import Pixels, deal
from reweigh.bench.compare.features import Frozen
from reweigh.bench.compare.model_card import ModelEvidence
from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.splits import parts_of, with_test_rows
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.errors import MissingPackageError, UserError
from reweigh.bench.files import replacing, sync, temporary_name
from reweigh.bench.lab.executors.local import settings_of
from reweigh.bench.lab.runs import Spec
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.spreadsheet import harmless_table
from reweigh.bench.tables import Profile, TableEncoder, TableError, restored
from reweigh.bench.train import device as devices
from reweigh.bench.train.correction import fitted, logits_per_output
from reweigh.bench.train.driver import Driver
from reweigh.bench.train.precision import Precision
from reweigh.bench.train.programs import boosting as boosters
from reweigh.bench.train.programs import newton_trees
from reweigh.bench.train.programs.supervised import Supervised as Program
from reweigh.bench.train.task import Task, predict
from reweigh.method import method
from reweigh.post import Correction

_WEIGHTS = "weights.safetensors"
#: What `-o` names the standard output by.
STANDARD_OUTPUT = Path("-")
_BOOSTER = {"lightgbm": "booster.txt", "xgboost": "booster.json", "gradient_boosting": "trees.json"}


def train_and_save(
    problem: Problem,
    spec: Spec,
    folder: Path,
    *,
    expected: Mapping[str, float],
    evidence: ModelEvidence | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Path:
    """Train the chosen method on all rows, but for those that fit its correction of outputs, and write the model.

    Parameters
    ----------
    problem
        The data.
    spec
        A run of the chosen method and model: its settings and seed are used.
    folder
        Where to write; a model that is there already is replaced once the new one is whole.
    expected
        The scores that such models had on test rows.
    evidence
        What the model card reports; without it none is written.
    progress
        Called with the share that is done.
    """
    settings = settings_of(recipe.Settings, spec)
    corrects = method(spec.method).post is not None
    parts = with_test_rows(problem, parts_of(problem, spec.seed), hold_out=corrects)
    task, preprocessing = deal(problem, parts, features=settings.features)
    card = {
        "reweigh": reweigh.__version__,
        "data": problem.name,
        "kind": problem.kind,
        "classes": list(problem.classes),
        "model": settings.model,
        "method": spec.method,
        "lr": settings.lr,
        "rows": {"trained on": len(parts.train), "fitted the correction": len(parts.val) if corrects else 0},
        "expected": dict(expected),
        "preprocessing": _saved(preprocessing),
        "training rows": _profile(problem, parts.train),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(folder)
    temporary.mkdir()
    try:
        if settings.model in boosters.LIBRARIES:
            card |= _train_booster(settings, spec, task, temporary, progress)
        else:
            card |= _train_network(settings, spec, task, temporary, progress)
        manifest.write(temporary, card)
        if evidence is not None:  # written for people, who may change it: it has no hash
            (temporary / model_card.FILE).write_text(model_card.text(card, evidence), encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        _replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _train_network(
    settings: Any, spec: Spec, task: Task, folder: Path, progress: Callable[[float], None]
) -> dict[str, Any]:
    from safetensors.torch import save

    seeds, row = Seeds(spec.seed), method(spec.method)
    with seeds.ambient("init"):
        network = supervised.build(settings, task, row)
    program = Program(task, network, row, settings.training(), seeds)
    driver = Driver(program)
    while not driver.over:
        driver.run_epoch()
        progress(driver.epoch / settings.epochs)
    average, scale = program.average, logits_per_output(program.loss)
    with contextlib.nullcontext() if average is None else average.swapped(network):
        weights = network.state_dict().items()
        kept = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights}
        outputs = predict(network.eval(), task.x_val).cpu()
        correction = fitted(task, program.post, outputs, scale=scale, model=network)
    # Not `save_file`, whose files only their owner can read.
    (folder / _WEIGHTS).write_bytes(save(kept))
    return {
        "shape": list(task.x_train.shape[1:]),
        "hidden": list(settings.hidden) if settings.model == "mlp" else None,
        "head": getattr(row.loss, "head", "linear"),
        "epoch": driver.epoch,
        "scale": scale,
        **_corrected(task, outputs, correction, scale),
    }


def _train_booster(
    settings: Any, spec: Spec, task: Task, folder: Path, progress: Callable[[float], None]
) -> dict[str, Any]:
    row = method(spec.method)
    booster = boosters.Booster(settings.model, task, row, settings.training(), spec.seed)
    for rounds in boosters.looks(settings.epochs):
        booster.advance(rounds - booster.rounds)
        progress(rounds / settings.epochs)
    booster.save(folder / _BOOSTER[settings.model], booster.rounds)
    outputs = booster.margins("val")
    correction = fitted(task, row.build(task.context(1)).post, outputs)
    return {
        "shape": list(task.x_train.shape[1:]),
        "epoch": booster.rounds,
        **_corrected(task, outputs, correction, 1.0),
    }


def _corrected(task: Task, outputs: torch.Tensor, correction: Correction | None, scale: float) -> dict[str, Any]:
    """The correction as plain data, and how well it does on the rows it was fitted to.

    Without one the rows were trained on like all others, and the scores show no more than that training worked.
    """
    logits = outputs.double().cpu().numpy() * scale
    scores = task.score("val", torch.from_numpy(logits if correction is None else correction(logits)))
    numbers = {name: value for name, value in scores.items() if isinstance(value, float) and np.isfinite(value)}
    return {
        "correction": None if correction is None else correction.state(),
        "scores on known rows": numbers,
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A model that was read back: rows in, predictions out."""

    card: Mapping[str, Any]
    preprocessing: TableEncoder | Pixels | Frozen
    outputs: Callable[[Any], Any]
    training_rows: Profile | None = None

    @classmethod
    def load(cls, folder: Path, *, precision: Precision = "float32") -> Model:
        """Read a model's folder; a network predicts on the process's device, in that precision.

        Raises
        ------
        TableError
            If it is not a model, is one of another version, or was damaged or made up.
        """
        card = manifest.read(folder)
        try:
            manifest.check(card, tuple(recipe.NETWORKS.values()), boosters.LIBRARIES)
            preprocessing = _restored(card["preprocessing"])
            _check_width(card, preprocessing)
            profile = None if (saved := card.get("training rows")) is None else Profile.from_dict(saved)
            booster = card["model"] in boosters.LIBRARIES
            outputs = _booster_outputs(card, folder) if booster else _network_outputs(card, folder, precision)
        except TableError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise manifest.damaged(folder / manifest.NAME, f"{type(error).__name__}: {_first(error)}") from None
        return cls(card=card, preprocessing=preprocessing, outputs=outputs, training_rows=profile)

    def predict(self, source: Path, notes: list[str] | None = None) -> pl.DataFrame:
        """Predictions for a file of rows, or a folder of images: the rows themselves with columns added.

        Added are `predicted TARGET` and, for classes, the probability of each. `notes` takes a sentence for everything
        that was guessed, left out, or unlike the training rows.
        """
        notes = [] if notes is None else notes
        how = self.preprocessing
        if isinstance(how, Pixels) or (isinstance(how, Frozen) and how.table is None):
            x, frame, target = _photos(source, how, notes)
        else:
            frame, files = _rows(source, notes)
            encoder = how.table if isinstance(how, Frozen) else how
            assert encoder is not None
            target = encoder.target.name
            x = torch.from_numpy(how.rows(frame) if isinstance(how, Frozen) else how.transform(frame))
            if self.training_rows is not None and (differences := self.training_rows.compare(frame, target)):
                notes.append(differences)
            frame = frame if files is None else pl.DataFrame({"file": files})
        outputs = np.asarray(self.outputs(x), np.float64)
        return pl.concat([frame, pl.DataFrame(self._columns(outputs, target, set(frame.columns)))], how="horizontal")

    def _columns(self, outputs: Any, target: str, taken: set[str]) -> dict[str, Any]:
        classes = self.card["classes"]
        if not classes:
            how = self.preprocessing.table if isinstance(self.preprocessing, Frozen) else self.preprocessing
            assert isinstance(how, TableEncoder)
            columns: dict[str, Any] = {f"predicted {target}": how.inverse_target(outputs.reshape(-1))}
        else:
            names = np.array(classes, dtype=object)
            columns = {f"predicted {target}": names[outputs.argmax(axis=1)].tolist()}
            columns |= {f"probability of {name}": outputs[:, k] for k, name in enumerate(classes)}
        clash = sorted(taken & set(columns))
        if clash:
            raise TableError(f"the rows already have a column {tables.quoted(clash[0])}. Drop or rename it.")
        return columns


def write_predictions(
    folder: Path, rows: Path, out: Path, *, precision: Precision = "float32"
) -> tuple[int, list[str]]:
    """Write a model's predictions for a file of rows, or a folder of images; returns how many there are, and notes."""
    if out.suffix not in (".csv", ".tsv", "", ".parquet"):
        raise UserError(f"`-o` must end in .csv, .tsv or .parquet, got {out.name!r}.")
    notes: list[str] = []
    frame = Model.load(folder, precision=precision).predict(rows, notes)
    if out == STANDARD_OUTPUT:
        sys.stdout.write(harmless_table(frame).write_csv())
        return frame.height, notes
    with replacing(out) as temporary:
        if out.suffix == ".parquet":
            frame.write_parquet(temporary)
        else:
            harmless_table(frame).write_csv(temporary, separator="\t" if out.suffix == ".tsv" else ",")
    return frame.height, notes


def _network_outputs(card: Mapping[str, Any], folder: Path, precision: Precision) -> Callable[[Any], Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    def build() -> nn.Module:
        options = {"hidden": card["hidden"]} if card["hidden"] else {}
        # What was published is not needed: all weights come from the file.
        return models.build(
            card["model"].removesuffix(",weights=imagenet"),
            tuple(card["shape"]),
            len(card["classes"]) or 1,
            head=card["head"],
            **options,
        )

    path = folder / _WEIGHTS
    try:
        with torch.device("meta"):  # shapes without memory
            expected = {name: tuple(value.shape) for name, value in build().state_dict().items()}
        if manifest.shapes_in(path) != expected:
            raise UserError("its tensors are not those of the model")
        network = build()
        network.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableError(f"{path} cannot be read ({_first(error)}). Train the model again.") from None
    network.eval().to(devices.current())

    def outputs(x: Any) -> Any:
        logits = predict(network, x, precision=precision).cpu().double().numpy()
        return _probabilities(card, logits * card["scale"]) if card["classes"] else logits

    return outputs


def _probabilities(card: Mapping[str, Any], logits: Any) -> Any:
    """The probability of each class after the correction that the model was kept with."""
    correction = card["correction"]
    return special.softmax(logits if correction is None else post.load(correction)(logits), axis=1)


def _booster_outputs(card: Mapping[str, Any], folder: Path) -> Callable[[Any], Any]:
    path = folder / _BOOSTER[card["model"]]
    if not boosters.installed(card["model"]):
        raise MissingPackageError(f"the model needs {card['model']}: pip install 'reweigh[boosting]'.")
    if not path.is_file():
        raise TableError(f"{path} is missing. Train the model again.")
    fits: dict[str, Any] = {"kind": card["kind"], "width": card["shape"][0], "classes": len(card["classes"])}
    try:
        if card["model"] == "lightgbm":
            import lightgbm

            lgb = lightgbm.Booster(model_str=booster_files.lightgbm_text(path, **fits))
            raw: Callable[[Any], Any] = lambda x: lgb.predict(x.numpy())  # noqa: E731
        elif card["model"] == "gradient_boosting":
            outputs_of = {"multiclass": fits["classes"]}.get(fits["kind"], 1)
            forest = newton_trees.load(path, width=fits["width"], outputs=outputs_of)
            raw = lambda x: _of_margins(forest.margins(x.numpy()), fits["kind"])  # noqa: E731
        else:
            import xgboost

            xgb = xgboost.Booster()
            xgb.load_model(booster_files.xgboost_json(path, **fits))
            raw = lambda x: xgb.predict(xgboost.DMatrix(x.numpy()))  # noqa: E731
    except Exception as error:  # each library has its own kind
        raise TableError(f"{path} cannot be read ({_first(error)}). Train the model again.") from None

    def outputs(x: Any) -> Any:
        predicted = np.asarray(raw(x), np.float64)
        if card["kind"] == "binary":
            predicted = np.stack([1 - predicted, predicted], axis=1)
        if card["correction"] is None:
            return predicted
        return _probabilities(card, np.log(np.maximum(predicted, np.finfo(np.float64).tiny)))

    return outputs


def _of_margins(margins: Any, kind: str) -> Any:
    """Margins of trees as other boosters predict: probabilities of several classes, of the second of two, numbers."""
    if kind == "multiclass":
        return special.softmax(margins, axis=1)
    return special.expit(margins[:, 0]) if kind == "binary" else margins[:, 0]


def _photos(source: Path, how: Pixels | Frozen, notes: list[str]) -> tuple[Any, pl.DataFrame, str]:
    """Images as the model takes them, their files, and what is predicted."""
    files = image_folder.images_below(source)
    if not files:
        raise TableError(f"{source} has no images. Give a folder with images in it or in its subfolders.")
    size = how.size if isinstance(how, Pixels) else 1
    images, files, unreadable = image_folder.readable(files, size, grey=False)
    notes += image_folder.skipped(unreadable, source)
    x: Any = how.transform(images) if isinstance(how, Pixels) else torch.from_numpy(how.photos(files))
    return x, pl.DataFrame({"file": [str(f.relative_to(source)) for f in files]}), "class"


def _rows(source: Path, notes: list[str]) -> tuple[pl.DataFrame, list[str] | None]:
    """The rows of a file, or the texts of a folder with their files."""
    return text_folder.unclassified(source) if source.is_dir() else (tables.read(source, least=1, notes=notes), None)


def _saved(preprocessing: TableEncoder | Pixels | Frozen) -> dict[str, Any]:
    if isinstance(preprocessing, Frozen):
        return {"frozen": preprocessing.to_dict()}
    if isinstance(preprocessing, Pixels):
        return {"pixels": dataclasses.asdict(preprocessing)}
    return {"encoder": preprocessing.to_dict()}


def _profile(problem: Problem, rows: Any) -> dict[str, Any] | None:
    """What the training rows of a table looked like; images have none."""
    if problem.images is not None:
        return None
    frame, schema = problem.table
    return Profile.of(frame[rows], schema).to_dict()


def _restored(saved: Mapping[str, Any]) -> TableEncoder | Pixels | Frozen:
    if "frozen" in saved:
        return Frozen.from_dict(saved["frozen"])
    if "pixels" in saved:
        return restored(Pixels, saved["pixels"])
    return TableEncoder.from_dict(saved["encoder"])


def _check_width(card: Mapping[str, Any], preprocessing: TableEncoder | Pixels | Frozen) -> None:
    """What preprocessing makes of a row is what the model takes."""
    size = getattr(preprocessing, "size", 0)
    shape = [3, size, size] if isinstance(preprocessing, Pixels) else [preprocessing.width]
    if card["shape"] != shape:
        raise UserError(f"rows have shape {shape}, and the model takes {card['shape']}")


def _replace(new: Path, folder: Path) -> None:
    """Put a folder in the place of another; at no moment is there half a model."""
    old = temporary_name(folder)
    if folder.exists():
        folder.replace(old)
    new.replace(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
