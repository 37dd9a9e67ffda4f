import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reweigh.bench import models
from reweigh.torch.losses.ldam import CosineLinear

SHAPES = {
    "linear": [(32,), (1, 8, 8)],
    "mlp": [(32,), (1, 8, 8)],
    "cnn": [(1, 28, 28), (3, 32, 32), (1, 8, 8)],
    "conv4:width=8": [(3, 32, 32), (1, 28, 28)],
    "conv4:width=8,downsample=stride": [(1, 28, 28), (1, 8, 8)],
    "resnet32": [(3, 32, 32), (1, 28, 28)],
    "wrn:depth=10,width=1": [(3, 32, 32), (1, 28, 28)],
    "vit:depth=2": [(3, 32, 32), (1, 28, 28)],
    "deit:patch=4,depth=2,width=24,heads=2,drop=0.0": [(3, 32, 32), (1, 28, 28)],
    "efficientnet_lite0": [(3, 64, 64)],
    "resnet50:width=8": [(3, 64, 64), (1, 33, 33)],
}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]
IMAGES = [(name, shape) for name, shape in CASES if len(shape) == 3 and name not in ("linear", "mlp")]


def made(name, shape, classes=10, seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return models.build(name, shape, classes, **options)


def inputs(shape, batch=4, seed=1):
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed))


def count(model):
    return sum(p.numel() for p in model.parameters())


# --- the registry ---


def test_the_folder_is_the_registry():
    assert models.names() == [
        "cnn", "conv4", "deit", "efficientnet_lite0", "linear", "mlp", "resnet32", "resnet50", "vit", "wrn",
    ]  # fmt: skip
    assert {case.partition(":")[0] for case in SHAPES} == set(models.names())
    rows = {row.name: row for row in models.describe()}
    assert rows["wrn"].options == {"depth": 16, "width": 8, "dropout": 0.0, "head": "linear"}
    assert all(row.summary.endswith(".") for row in rows.values())


def test_errors_name_the_near_thing():
    with pytest.raises(ValueError, match=r"no model named 'resnet'. Did you mean 'resnet50' or 'resnet32'"):
        models.build("resnet", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"'wrn' has no option 'dept'. Did you mean 'depth'"):
        models.build("wrn:dept=10", (3, 32, 32), 10)
    with pytest.raises(ValueError, match="'depth' is given twice"):
        models.build("wrn:depth=10", (3, 32, 32), 10, depth=16)
    with pytest.raises(ValueError, match="name:key=value"):
        models.build("wrn:10", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"6 n \+ 4"):
        models.build("wrn:depth=12", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"'resnet32' takes images .* got \(32,\)"):
        models.build("resnet32", (32,), 10)
    with pytest.raises(ValueError, match="`head` must be one of 'linear', 'cosine', got 'cosin'"):
        models.build("mlp", (32,), 10, head="cosin")
    with pytest.raises(ValueError, match="`patch` must divide"):
        models.build("vit", (1, 30, 30), 10)
    with pytest.raises(ValueError, match="multiple of 4 and of `heads`"):
        models.build("vit:heads=5", (1, 32, 32), 10)
    with pytest.raises(ValueError, match="such as '64-64', got '64x64'"):
        models.build("mlp:hidden=64x64", (32,), 10)
    with pytest.raises(ValueError, match="`classes` must be"):
        models.build("mlp", (32,), 0)


# --- what holds for every model ---


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_shapes_and_gradients(name, shape, head):
    model = made(name, shape, 7, head=head)
    output = model(inputs(shape))
    assert output.shape == (4, 7)
    assert torch.isfinite(output).all()
    F.cross_entropy(output * (30 if head == "cosine" else 1), torch.tensor([0, 1, 2, 6])).backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.abs().sum() > 0, label
    cosines = [m for m in model.modules() if isinstance(m, CosineLinear)]
    assert len(cosines) == (head == "cosine")
    if head == "cosine":
        assert output.abs().max() <= 1 + 1e-6


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_the_ambient_generator_decides_and_nothing_else(name, shape):
    one, same, other = (made(name, shape, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)
    # A model that seeded the generator itself would leave it in the same state whatever it was before.
    states = []
    for seed in (3, 4):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            models.build(name, shape, 10)
            states.append(torch.get_rng_state())
    assert not torch.equal(*states)


@pytest.mark.parametrize(("name", "shape"), IMAGES)
def test_channels_last_is_only_a_matter_of_memory(name, shape):
    model = made(name, shape).eval()
    x = inputs(shape)
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)
    got = model(x.to(memory_format=torch.channels_last))
    assert torch.allclose(got, expected, atol=1e-4 * float(expected.detach().abs().max()))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_examples_do_not_see_one_another_in_evaluation(name, shape):
    model = made(name, shape).eval()
    x = inputs(shape)
    whole, alone = model(x), torch.cat([model(row[None]) for row in x])
    assert torch.allclose(whole, alone, atol=1e-4 * float(whole.detach().abs().max()))


# --- each by itself ---


def test_linear_and_mlp_are_what_their_weights_say():
    x = inputs((1, 8, 8))
    flat = x.reshape(4, 64).numpy().astype(np.float64)
    linear = made("linear", (1, 8, 8))
    weight, bias = (p.detach().numpy().astype(np.float64) for p in linear.parameters())
    assert np.allclose(linear(x).detach().numpy(), flat @ weight.T + bias, atol=1e-5)
    mlp = made("mlp:hidden=5-3", (1, 8, 8))
    w1, b1, w2, b2, w3, b3 = (p.detach().numpy().astype(np.float64) for p in mlp.parameters())
    assert [w.shape for w in (w1, w2, w3)] == [(5, 64), (3, 5), (10, 3)]
    hidden = np.maximum(np.maximum(flat @ w1.T + b1, 0) @ w2.T + b2, 0)
    assert np.allclose(mlp(x).detach().numpy(), hidden @ w3.T + b3, atol=1e-5)


def test_mlp_widths_and_counts():
    # 32-64-64-10: 33*64 + 65*64 + 65*10.
    assert count(made("mlp", (32,))) == 2112 + 4160 + 650
    for hidden in ("64-64", (64, 64), [64, 64]):
        assert count(models.build("mlp", (32,), 10, hidden=hidden)) == 6922
    assert count(made("mlp:hidden=20", (32,))) == 33 * 20 + 21 * 10
    assert any(isinstance(m, nn.Dropout) for m in made("mlp:dropout=0.2", (32,)).modules())


def test_cnn_has_about_a_hundred_thousand_parameters():
    # 16*(9+1) + 32*(16*9+1) + 64*(32*7*7+1) + 10*65
    assert count(made("cnn", (1, 28, 28))) == 160 + 4640 + 100416 + 650
    assert count(made("cnn", (3, 32, 32))) == 448 + 4640 + 131136 + 650


def test_resnet32_has_the_published_number_of_parameters():
    model = made("resnet32", (3, 32, 32))
    assert count(model) == 464_154
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 31  # with the linear head 32 layers
    assert all(m.kernel_size == (3, 3) for m in model.modules() if isinstance(m, nn.Conv2d))  # no projections
    # With 100 classes the head alone grows.
    assert count(made("resnet32", (3, 32, 32), 100)) == 464_154 + 90 * 65


def reference_resnet32(state, x):
    """The network written out from its state, with the shortcut of option A made pixel by pixel."""

    def norm(name, x):
        mean, variance = (state[f"{name}.running_{part}"].view(1, -1, 1, 1) for part in ("mean", "var"))
        weight, bias = (state[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("weight", "bias"))
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    def shortcut(x, width):
        batch, channels, height, side = x.shape
        out = torch.zeros(batch, width, (height + 1) // 2, (side + 1) // 2, dtype=x.dtype)
        first = (width - channels) // 2
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                out[:, first : first + channels, i, j] = x[:, :, 2 * i, 2 * j]
        return out

    x = torch.relu(norm("norm", F.conv2d(x, state["conv.weight"], padding=1)))
    for block in range(15):
        name = f"blocks.{block}"
        down = block in (5, 10)
        y = F.conv2d(x, state[f"{name}.conv1.weight"], padding=1, stride=2 if down else 1)
        y = torch.relu(norm(f"{name}.norm1", y))
        y = norm(f"{name}.norm2", F.conv2d(y, state[f"{name}.conv2.weight"], padding=1))
        x = torch.relu(y + (shortcut(x, y.shape[1]) if down else x))
    return x.mean(dim=(2, 3)) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("side", [32, 28, 9])
def test_resnet32_is_the_network_written_out(side):
    model = made("resnet32", (3, side, side)).double()
    x = inputs((3, side, side)).double()
    for _ in range(3):  # statistics other than the initial zeros and ones
        model(x + torch.randn(1, 3, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1)
        model.eval()
        expected = reference_resnet32(model.state_dict(), x)
        assert torch.allclose(model(x), expected, rtol=1e-9, atol=1e-9)


def test_resnet32_starts_he_normal():
    model = made("resnet32", (3, 32, 32))
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    for module in convolutions:
        fan_in = module.in_channels * 9
        # Standard error of a standard deviation from n normal draws: s / sqrt(2 n).
        n = module.weight.numel()
        assert abs(float(module.weight.detach().std()) * (fan_in / 2) ** 0.5 - 1) < 5 / (2 * n) ** 0.5
    kurtosis = float((torch.cat([m.weight.detach().flatten() * m.in_channels**0.5 for m in convolutions]) ** 4).mean())
    assert abs(kurtosis / (3 * (2 / 9) ** 2) - 1) < 0.05  # a normal, not a uniform (1.8 instead of 3)


def wrn_count(depth, width, classes, channels=3):
    """Parameters by the architecture's arithmetic: convolutions, two numbers a normalised channel, the head."""
    blocks = (depth - 4) // 6
    total, before = channels * 16 * 9, 16
    for group in (1, 2, 4):
        after = 16 * width * group
        for _ in range(blocks):
            total += before * after * 9 + after * after * 9 + 2 * before + 2 * after
            total += before * after if before != after else 0
            before = after
    return total + 2 * before + before * classes + classes


def on_meta(name, shape, classes):
    with torch.device("meta"):
        return models.build(name, shape, classes)


def test_wide_resnets_have_the_published_numbers_of_parameters():
    # WRN-28-10 is quoted with 36.5 million: 36 479 194 with ten classes, 36 536 884 with a hundred.
    assert count(on_meta("wrn:depth=28,width=10", (3, 32, 32), 10)) == wrn_count(28, 10, 10) == 36_479_194
    assert count(on_meta("wrn:depth=28,width=10", (3, 32, 32), 100)) == 36_536_884
    assert count(on_meta("wrn", (3, 32, 32), 10)) == wrn_count(16, 8, 10) == 10_961_370
    assert round(wrn_count(16, 8, 10) / 1e6, 1) == 11.0  # the paper's table
    assert count(made("wrn:depth=10,width=1", (3, 32, 32))) == wrn_count(10, 1, 10) == 77_850
    assert count(made("wrn:depth=10,width=1", (1, 28, 28))) == wrn_count(10, 1, 10, channels=1)
    assert round(wrn_count(40, 2, 10) / 1e6, 1) == 2.2
    assert count(on_meta("wrn:depth=40,width=2", (3, 32, 32), 10)) == wrn_count(40, 2, 10)


def test_wide_resnet_blocks_start_behind_their_normalisation():
    model = made("wrn:depth=10,width=1", (3, 16, 16)).eval()
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    with torch.no_grad():
        model(inputs((3, 16, 16)))
        for number, (block, (x, y)) in enumerate(zip(model.blocks, seen, strict=True)):
            # Fresh statistics: normalisation divides by sqrt(1 + eps) and does nothing else.
            active = torch.relu(x / (1 + 1e-5) ** 0.5)
            inner = torch.relu(block.conv1(active) / (1 + 1e-5) ** 0.5)
            shortcut = x if number == 0 else active[:, :, ::2, ::2]
            if number:
                shortcut = torch.einsum("bchw,oc->bohw", shortcut, block.shortcut.weight[:, :, 0, 0])
            assert torch.allclose(y, block.conv2(inner) + shortcut, atol=1e-4)
    assert [y.shape[1:] for _, y in seen] == [(16, 16, 16), (32, 8, 8), (64, 4, 4)]


def test_tiny_vit_parameters():
    # Patches 48*192+192; a layer: two norms 768, qkv 111 168, projection 37 056, feed-forward 295 872; norm; head.
    assert count(on_meta("vit", (3, 32, 32), 10)) == 9408 + 6 * (768 + 111_168 + 37_056 + 295_872) + 384 + 1930


def test_deit_small_has_the_published_size():
    """Patches, token, 197 positions, 12 layers, normalisation, 1000 classes: 22.05 million."""
    layer = 768 + 443_520 + 147_840 + 768 + 591_360 + 590_208
    assert count(on_meta("deit", (3, 224, 224), 1000)) == 295_296 + 384 + 75_648 + 12 * layer + 768 + 385_000


def test_deit_skips_parts_in_training_only_and_keeps_their_mean():
    model = made("deit:patch=4,depth=2,width=12,heads=3,drop=0.5", (1, 8, 8))
    x = inputs((1, 8, 8))
    assert torch.equal(model.eval()(x), model(x))
    block, added = model.train().blocks[1], torch.ones(4000, 1, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kept = block.drop(added)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert abs(kept.mean().item() - 1.0) < 0.06
    assert torch.equal(model.blocks[0].drop(added), added)  # the share rises from nothing


def test_vit_is_the_transformer_written_out():
    model = made("vit:depth=1,width=12,heads=3,patch=4", (1, 8, 8)).double().eval()
    x = inputs((1, 8, 8)).double()
    state = {key: value.detach() for key, value in model.named_parameters()}

    def norm(name, t):
        t = t - t.mean(dim=-1, keepdim=True)
        t = t / (t.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        return t * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(name, t):
        return t @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    patches = [x[:, :, i : i + 4, j : j + 4].reshape(4, -1) for i in (0, 4) for j in (0, 4)]
    kernel = state["embed.weight"].reshape(12, -1)
    tokens = torch.stack([p @ kernel.T + state["embed.bias"] for p in patches], dim=1) + model.positions
    q, k, v = linear("blocks.0.qkv", norm("blocks.0.norm1", tokens)).split(12, dim=-1)
    mixed = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        attention = torch.softmax(q[..., part] @ k[..., part].transpose(1, 2) / 2.0, dim=-1)
        mixed.append(attention @ v[..., part])
    tokens = tokens + linear("blocks.0.out", torch.cat(mixed, dim=-1))
    up = linear("blocks.0.up", norm("blocks.0.norm2", tokens))
    tokens = tokens + linear("blocks.0.down", up * 0.5 * (1 + torch.erf(up / 2**0.5)))
    expected = linear("head", norm("norm", tokens).mean(dim=1))
    assert torch.allclose(model(x).detach(), expected, rtol=1e-9, atol=1e-9)


def test_vit_positions_are_sines_and_cosines_of_row_and_column():
    model = made("vit:depth=1,width=8,heads=2", (1, 8, 12))
    assert model.positions.shape == (1, 6, 8)
    # Width 8: two frequencies, 1 and 1/10 000. Token 4 is row 1, column 1; token 2 is row 0, column 2.
    small = 1e-4
    row1 = [np.sin(1), np.sin(small), np.cos(1), np.cos(small)]
    assert np.allclose(model.positions[0, 4].numpy(), row1 + row1, atol=1e-7)
    column2 = [np.sin(2), np.sin(2 * small), np.cos(2), np.cos(2 * small)]
    assert np.allclose(model.positions[0, 2].numpy(), [0, 0, 1, 1, *column2], atol=1e-7)
    assert "positions" not in model.state_dict()


def test_models_learn():
    """A few steps on a fixed batch bring the loss down: signs and wiring are right from end to end."""
    for name, shape in CASES:
        model = made(name, shape)
        x, y = inputs(shape, batch=8), torch.arange(8)
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0], name
