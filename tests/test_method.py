"""Method texts and the values they stand for."""

import importlib
import inspect

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reweigh
from reweigh.method import ALIASES, SLOTS, Context, Method, cards, method, names, parameters
from reweigh.torch.losses import BCE, ClassBalanced, Focal
from reweigh.torch.steps import L2RW, RECOVER, SAM, FineTune, Projected


def test_every_file_of_every_slot_is_a_method_with_a_card():
    found = {(card.slot, card.name): card for card in cards()}
    for slot in SLOTS:
        assert names(slot), slot
        for name in names(slot):
            card = found[slot, name]
            assert card.summary.endswith((".", "!")) or card.summary, name
            assert set(card.search) <= set(card.defaults), name
            assert card.missing is None


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot != "objective"])
def test_a_card_read_from_the_source_is_that_of_the_class(slot):
    for card in (card for card in cards() if card.slot == slot):
        module = importlib.import_module(f"{SLOTS[slot]}.{card.name}")
        kind = getattr(module, module.__all__[0])
        assert card.summary == inspect.getdoc(kind).partition("\n")[0]
        assert (card.search, card.cost) == (kind.search, kind.cost)
        assert list(card.defaults) == list(parameters(kind))
        for name, parameter in parameters(kind).items():
            assert str(card.defaults[name]) == str(parameter.default), (card.name, name)


def test_the_name_is_the_function_whatever_was_imported_first():
    import reweigh.method as module_or_function

    assert reweigh.method is method
    assert module_or_function is method


def test_names_are_unique_over_slots():
    every = [name for slot in SLOTS for name in names(slot)]
    assert len(every) == len(set(every))
    assert not set(ALIASES) & set(every)


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
def test_every_method_round_trips_through_its_text(card):
    required = {"projected": "radius=1"}.get(card.name, "")
    value = method(f"{card.name}:{required}")
    assert method(str(value)) == value
    for name, values in card.search.items():
        for chosen in values:
            changed = method(f"{card.name}:{required},{name}={chosen}")
            assert getattr(getattr(changed, card.slot), name) == chosen
            assert method(str(changed)) == changed


def test_parts_fill_their_slots_in_any_order():
    one, other = method("focal+rgd:tau=3+sam:rho=0.1"), method("sam:rho=0.1+rgd:tau=3+focal")
    assert one == other
    assert one.objective == reweigh.RGD(tau=3.0)
    assert one.step.rho == 0.1
    assert one.sampler is None
    assert str(one) == "focal+rgd:tau=3+sam:rho=0.1"


def test_plain_training_has_two_names_and_one_text():
    assert method("erm") == method("mean") == Method()
    assert str(method("erm")) == "mean"


def test_values_take_the_type_of_their_field():
    objective = method("rgd:tau=3,divergence=chi2,scaled=true,warmup=5").objective
    assert objective == reweigh.RGD(tau=3.0, divergence="chi2", scaled=True, warmup=5)
    assert type(objective.tau) is float
    assert method("rgd:tau=none,gamma=-1").objective == reweigh.RGD(tau=None, gamma=-1.0)
    assert method("rgd:tau=1e+1").objective.tau == 10.0
    assert method("focal+rgd:tau=+3+sam") == method("focal+rgd:tau=3+sam")


def test_a_tuple_survives_the_text():
    value = method("group_dro:n_groups=3,adjustment=2,group_counts=4/16/100")
    assert value.objective.group_counts == (4, 16, 100)
    assert method(str(value)) == value


def test_one_number_for_a_field_that_takes_many_is_one_number():
    one, many, single = (method(f"bce:pos_weight={text}").loss for text in ("3", "3/2", "3/"))
    assert (one.pos_weight, many.pos_weight, single.pos_weight) == (3.0, (3, 2), (3,))
    logits, target = torch.zeros(2, 4), torch.ones(2, 4)
    torch.testing.assert_close(one(logits, target), BCE(pos_weight=3.0)(logits, target))
    for loss in (one, many, single):
        assert method(str(Method(loss=loss))) == Method(loss=loss)
    assert method("bce:pos_weight=none").loss == BCE()
    assert method("group_dro:adjustment=2,group_counts=4").objective.group_counts == (4,)  # takes no single number


@pytest.mark.parametrize(
    "value", [Method(loss=ClassBalanced(base=Focal(gamma=1.0))), Method(step=Projected(radius=5, base=SAM()))], ids=str
)
def test_a_part_inside_a_part_is_readable_and_refused_as_a_text(value):
    assert "base=Focal(" in str(value) or "base=SAM(" in str(value)
    with pytest.raises(ValueError, match="a part inside a part cannot be written"):
        method(str(value))


@given(st.floats(1e-3, 1e3), st.sampled_from(["kl", "revkl"]), st.booleans())
def test_any_number_survives_the_text(tau, divergence, normal):
    value = Method(objective=reweigh.RGD(tau=tau, divergence=divergence, normalize="mean" if normal else None))
    assert method(str(value)) == value


def test_the_objective_of_a_text_is_a_function():
    assert float(method("cvar:alpha=0.25").objective(np.array([1.0, 2.0, 3.0, 4.0]))) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rgf", "Did you mean 'rgd'"),
        ("rgd:taw=3", "Did you mean 'tau'"),
        ("rgd+term", "two values for the objective slot"),
        ("rgd:tau", "key=value"),
        ("focal++rgd", "joined by '\\+'"),
        ("", "joined by '\\+'"),
        ("rgd:tau=-1", "`tau` must be a positive number, got -1"),
        ("mean:tau=1", "has no hyper-parameter 'tau'"),
        ("rgd:surrogate=no", "`surrogate` must be true or false, got 'no'"),
        ("rgd:surrogate=1", "`surrogate` must be true or false, got '1'"),
        ("term:sync=off", "`sync` must be true or false, got 'off'"),
        ("mse:half=yes", "`half` must be true or false, got 'yes'"),
        ("rgd:tau=1,gamma=0.5,tau=3", "'rgd' is given 'tau' twice"),
    ],
)
def test_a_wrong_text_names_the_fix(text, said):
    with pytest.raises(ValueError, match=said):
        method(text)


def test_build_fills_every_slot_and_binds_to_the_data():
    built = method("class_balanced+rgd").build(Context(n=110, class_counts=(100, 10)))
    assert built.loss.class_counts == (100, 10)
    assert built.sampler is not None
    assert built.step is not None
    assert built.average is None


def test_build_names_what_is_missing():
    with pytest.raises(ValueError, match="class_counts"):
        method("class_balanced").build(Context(n=10))
    with pytest.raises(ValueError, match="meta_loader"):
        method("l2rw").build(Context(n=10))


def test_build_gives_the_number_of_groups():
    assert method("group_dro").build(Context(n=10, n_groups=3)).objective.n_groups == 3
    assert method("group_dro:n_groups=2").build(Context(n=10, n_groups=3)).objective.n_groups == 2


def test_a_step_that_weighs_by_itself_refuses_an_objective():
    with pytest.raises(ValueError, match="would be ignored"):
        method("rgd+l2rw").build(Context(n=10, meta_loader=()))


def test_a_sampler_that_weighs_by_itself_refuses_an_objective():
    with pytest.raises(ValueError, match=r"'importance'.*'rgd' would count them a second time\. Keep one"):
        method("importance+rgd").build(Context(n=10))
    assert method("importance").build(Context(n=10)).sampler is not None
    assert method("class_uniform+rgd").build(Context(n=10, targets=(0, 1))).objective == reweigh.RGD()


@pytest.mark.parametrize("base", [RECOVER(), L2RW()], ids=repr)
def test_a_projection_of_such_a_step_refuses_it_too(base):
    value = Method(objective=reweigh.RGD(), step=Projected(radius=1, base=base))
    with pytest.raises(ValueError, match="would be ignored"):
        value.build(Context(n=10, meta_loader=()))
    Method(step=value.step).build(Context(n=10, meta_loader=()))


def test_build_fills_in_what_the_step_inside_a_projection_needs():
    value = Method(step=Projected(radius=1, base=FineTune(share=0.5)))
    assert value.build(Context(n=10, meta_loader=(), steps=8)).step.base.steps == 8
    with pytest.raises(ValueError, match=r"'fine_tune:share=0\.5' needs to know steps"):
        value.build(Context(n=10, meta_loader=()))
    given = Method(step=Projected(radius=1, base=FineTune(steps=4)))
    assert given.build(Context(n=10, meta_loader=())).step.base.steps == 4
    with pytest.raises(ValueError, match="'l2rw' needs to know meta_loader"):
        Method(step=Projected(radius=1, base=L2RW())).build(Context(n=10))
    assert Method(step=Projected(radius=1, base=SAM())).build(Context(n=10)).step.base == SAM()
