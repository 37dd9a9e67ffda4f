"""Few-shot tasks of images: n classes, a few examples of each to learn from, some to tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.draws.few_shot import ClassSplit, class_split, draw_tasks, sha256_of_tasks
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train.programs.episodes import Episodes, Floats, TaskPool, Tasks
from reweigh.bench.train.records import ArrayWriter, Record

#: Tasks that are looked at together.
_AT_ONCE = 4
#: Tasks of each run whose pictures are kept for the report.
_PICTURES = 24
#: The one seed of the frozen pools, whatever the seed of a run.
_POOL_SEED = 2024


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a task: its classes, and the examples of each to learn from and to tell apart."""

    ways: int
    shots: int
    queries: int

    def __post_init__(self) -> None:
        for name in ("ways", "shots", "queries"):
            validate.whole(name, getattr(self, name), 2 if name == "ways" else 1)


class ImageTasks(Tasks):
    """Tasks drawn from the classes of a data set.

    Parameters
    ----------
    dataset
        Images of many classes; its parts are pooled, and its classes split again.
    shape, test_shape
        Of tasks to learn from, and of the frozen ones.
    rotations
        Whether each class turned by 90, 180 and 270 degrees is a class of its own to learn from. Classes to choose by
        and to report are never turned: a task could hold the same character twice.
    sizes
        Classes to learn from, to choose by and to report; 64, 16 and 20 percent, or the data's own, if None.
    pools
        Frozen validation and test tasks.
    """

    def __init__(
        self,
        dataset: Dataset,
        shape: Shape,
        test_shape: Shape,
        *,
        rotations: bool = False,
        sizes: tuple[int, int, int] | None = None,
        pools: tuple[int, int] = (128, 1024),
    ) -> None:
        images = np.concatenate([dataset.x_train, dataset.x_test])
        labels = np.concatenate([dataset.y_train, dataset.y_test])
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        self.members = [np.flatnonzero(labels == label) for label in range(len(dataset.classes))]
        self.split: ClassSplit = class_split(dataset.classes, sizes)
        turns = 4 if rotations else 1
        self.turns = {"train": turns, "val": 1, "test": 1}
        self.shape, self.test_shape, self.ways = shape, test_shape, shape.ways
        self.pools = {
            part: self._tasks(part, test_shape, count, Seeds(_POOL_SEED).numpy(f"{part} pool"))
            for part, count in zip(("val", "test"), pools, strict=True)
        }

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def draw(self, rng: np.random.Generator, count: int) -> Episodes:
        """New tasks of training classes."""
        return self._episodes("train", self._tasks("train", self.shape, count, rng), self.shape)

    def pool(self, part: TaskPool) -> Iterator[Episodes]:
        """The frozen tasks of validation or test classes."""
        tasks = self.pools[part]
        for start in range(0, len(tasks), _AT_ONCE):
            yield self._episodes(part, tasks[start : start + _AT_ONCE], self.test_shape)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of each task's queries that are right."""
        return (outputs.argmax(-1) == targets).double().mean(-1)

    def facts(self) -> Record:
        """The hashes of the split and of the pools."""
        return {
            "classes_sha256": self.split.sha256,
            "val_tasks_sha256": sha256_of_tasks(self.pools["val"]),
            "test_tasks_sha256": sha256_of_tasks(self.pools["test"]),
        }

    def keep(self, keeper: ArrayWriter, scores: Floats, outputs: Tensor) -> None:
        """The scores, the split, the pool, and pictures of the tasks that went worst."""
        super().keep(keeper, scores, outputs)
        for part, classes in self.split._asdict().items():
            keeper.array(f"classes_{part}", classes.astype(np.int32))
        keeper.array("test_tasks", self.pools["test"].astype(np.int32))
        hardest = np.argsort(scores, kind="stable")[:_PICTURES]
        pictures = [self._picture(task, outputs[task]) for task in hardest]
        support, query, predicted = (np.stack(parts) for parts in zip(*pictures, strict=True))
        keeper.array("hardest", hardest.astype(np.int32))
        keeper.array("hardest_support", support)
        keeper.array("hardest_query", query)
        keeper.array("hardest_taken_for", predicted.astype(np.int32))

    def _picture(self, task: int, outputs: Tensor) -> tuple[Floats, Floats, Floats]:
        """Of one test task: an example of each class, its query that went worst, and what that was taken for."""
        ways, shots = self.test_shape.ways, self.test_shape.shots
        images = self._gather("test", self.pools["test"][task : task + 1])[0]
        answers = outputs.reshape(ways, self.test_shape.queries, -1)
        truth = torch.arange(ways)[:, None, None]
        margin = answers.gather(2, truth.expand(-1, answers.shape[1], 1))[..., 0] - answers.amax(-1)
        chosen = margin.argmin(1)
        queries = images[torch.arange(ways), shots + chosen]
        predicted = answers[torch.arange(ways), chosen].argmax(-1)
        return images[:, 0].numpy(), queries.numpy(), predicted.numpy()

    def _tasks(self, part: str, shape: Shape, count: int, rng: np.random.Generator) -> Floats:
        """Tasks as indices; a class number counts classes of the part times turns."""
        classes = getattr(self.split, part)
        sizes = np.repeat([len(self.members[label]) for label in classes], self.turns[part])
        return draw_tasks(sizes, shape.ways, shape.shots + shape.queries, count, rng)

    def _gather(self, part: str, tasks: Floats) -> Tensor:
        """The images of tasks, uint8: `(tasks, ways, shots + queries, channels, height, width)`."""
        classes, turns = getattr(self.split, part), self.turns[part]
        rows = [[self.members[classes[row[0] // turns]][row[1:]] for row in task] for task in tasks]
        images = self.images[torch.from_numpy(np.array(rows))]
        if turns == 1:
            return images
        turned = torch.from_numpy(tasks[:, :, 0] % turns)
        for turn in range(1, turns):
            chosen = turned == turn
            images[chosen] = torch.rot90(images[chosen], turn, (-2, -1))
        return images

    def _episodes(self, part: str, tasks: Floats, shape: Shape) -> Episodes:
        images = self._gather(part, tasks).float() / 255
        labels = torch.arange(shape.ways).repeat(len(tasks), 1)
        return Episodes(
            support_x=images[:, :, : shape.shots].flatten(1, 2),
            support_y=labels.repeat_interleave(shape.shots, 1),
            query_x=images[:, :, shape.shots :].flatten(1, 2),
            query_y=labels.repeat_interleave(shape.queries, 1),
        )
