"""Mutants with a name: bugs that once survived, and changes that make no difference."""

from __future__ import annotations

#: Changes that make no difference: module, line and change, and why not.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "objectives/rgd.py",
        "return value is None or isinstance(value, (int, float))",
        "value is None or isinstance(value, (int, float)) -> value is None and isinstance(value, (int, float))",
    ): "whether a value is kept or built again changes time alone",
    (
        "objectives/chi2_dro.py",
        "price = 0.5 * self.reg * mean((density - 1.0) * (density - 1.0), amounts)",
        "density - 1.0 -> density + 1.0",
    ): "the density has mean one, so the mean of (d + 1)(d - 1) is that of (d - 1)²",
    (
        "weights.py",
        "near = isinstance(bound, (int, float)) and abs(bound) < 10.0",
        "10.0 -> 11.0",
    ): "exp(11) is a number in float16 too",
    (
        "objectives/_measure.py",
        "return x if x > 0 else x.dtype.type(1.0)",
        "1.0 -> 2.0",
    ): "what is divided by it is zero",
    (
        "bench/lab/plan.py",
        "longest = max((len(values) for values in spread.values()), default=1)",
        "1 -> 2",
    ): "without axes all settings are the same one",
    (
        "objectives/kl_dro.py",
        "near = float(xp.finfo(unit.dtype).eps) ** 0.5  # the step after one as short as this is a rounding error",
        "0.5 -> 1.5",
    ): "more steps to the same number",
    (
        "objectives/group_dro.py",
        "segment_sum(measure * present(losses, measure, 0.0), index, size),",
        "0.0 -> 1.0",
    ): "what takes its place is multiplied by a measure of zero",
    (
        "bench/train/tally.py",
        'columns["weights/noisy"] = (weights * noisy).sum(-1) / noisy.sum(-1)',
        "-1 -> +1",
    ): "there are two axes, and the last one is number one",
    (
        "bench/compare/answer.py",
        "_MOST_SPLITS = 200",
        "200 -> 201",
    ): "a choice: a test could only repeat it",
    (
        "bench/compare/search.py",
        "chosen[key] = max(finite, key=lambda trial: (round(finite[trial][0], 9), finite[trial][1]))",
        "9 -> 10",
    ): "a choice: scores that differ by a billionth are equal",
    (
        "bench/lab/results.py",
        "for group, own in zip(tables.values(), facts, strict=True):",
        "True -> False",
    ): "both lists come from the same place: the check is for whoever changes that",
}
#: Bugs that once survived: module, what is there, and what is planted.
PLANTED = {
    "epoch chosen on test data": (
        "bench/lab/table.py",
        "self.best(self.selecting(records))",
        "self.best([float(record[self.metric]) for record in records])",
    ),
    "tuning judged by the last epoch": (
        "bench/lab/plan.py",
        "table.selecting(records, spec.label)[table.chosen(records)]",
        "table.selecting(records, spec.label)[-1]",
    ),
    "evaluation without eval()": ("bench/train/driver.py", "        program.module.eval()\n", ""),
    "augmentation generator not restored": (
        "bench/train/programs/supervised.py",
        '        self.augmentation.set_state(state["augmentation"])\n',
        "",
    ),
    "the least good of the better rows proposed": (
        "bench/compare/actions.py",
        "decision(better[0],",
        "decision(better[-1],",
    ),
    "per-metric correction dropped": (
        "bench/compare/answer.py",
        "    corrected = stats.corrected(differences)\n    return",
        "    corrected = differences\n    return",
    ),
    "the kept model's epoch": (
        "bench/compare/model.py",
        "    while not driver.over:",
        "    while driver.epoch < settings.epochs - 1:",
    ),
    "AUROC ties": (
        "bench/train/scores.py",
        "ranks = stats.rankdata(probabilities[:, chosen], axis=0)",
        'ranks = stats.rankdata(probabilities[:, chosen], method="ordinal", axis=0)',
    ),
    "mixed masked and unmasked micro-batches": (
        "torch/reweighted.py",
        "    if any(micro.measure is not None for micro in micros):",
        "    if all(micro.measure is not None for micro in micros):",
    ),
    "> for >= in the clip share": ("monitor.py", "(losses >= tau + offset)", "(losses > tau + offset)"),
}
