"""Images as tensors: crops, mirrors, cutout and normalisation."""

import numpy as np
import pytest
import torch

from reweigh.bench.train.pixels import (
    Augment,
    as_tensor,
    cutout,
    normalize,
    pixel_statistics,
    random_crop_flip,
)

CIFAR_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
CIFAR_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)


def rng(seed=0):
    return np.random.default_rng(seed)


# --- augmentation ---


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def every_crop(image, pad):
    """All crops of one HWC image and their mirror images, by NumPy's own padding."""
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
    h, w = image.shape[:2]
    for top in range(2 * pad + 1):
        for left in range(2 * pad + 1):
            crop = padded[top : top + h, left : left + w]
            yield (top, left, False), crop
            yield (top, left, True), crop[:, ::-1]


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (12, 10, 2)])
def test_every_augmented_image_is_a_crop_of_its_own(shape, contiguous):
    images = rng().integers(0, 256, (40, *shape), np.uint8)
    tensor = as_tensor(images)
    assert tensor.data_ptr() == torch.from_numpy(images).data_ptr()
    out = Augment()(tensor.contiguous() if contiguous else tensor, generator())
    assert out.dtype == torch.uint8
    assert out.shape == tensor.shape
    assert out.is_contiguous(memory_format=torch.channels_last)
    got = out.permute(0, 2, 3, 1).numpy()
    kinds = []
    for image, result in zip(images, got, strict=True):
        matches = [kind for kind, crop in every_crop(image, 4) if np.array_equal(crop, result)]
        assert len(matches) == 1
        kinds += matches
    assert len(set(kinds)) > 25  # each image has a draw of its own


def test_crops_and_mirrors_are_uniform_and_independent():
    # One image whose pixels are all different tells by its corner which crop it is.
    image = np.arange(36, dtype=np.uint8).reshape(6, 6, 1)
    n = 4000
    out = random_crop_flip(as_tensor(np.repeat(image[None], n, axis=0)), generator(), pad=2)
    names = {crop.tobytes(): kind for kind, crop in every_crop(image, 2)}
    kinds = [names[result.numpy().tobytes()] for result in out.permute(0, 2, 3, 1).contiguous()]
    counts = np.array([kinds.count(kind) for kind in names.values()])
    assert len(counts) == 50
    # Chi-squared with 49 degrees of freedom: 99.99 % lie below 94.
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 94


def test_augmentation_repeats_with_its_generator_and_leaves_the_global_one_alone():
    images = as_tensor(rng().integers(0, 256, (8, 32, 32, 3), np.uint8))
    before = torch.get_rng_state()
    augment = Augment(cutout=16)
    first = augment(images, generator(3))
    assert torch.equal(first, augment(images, generator(3)))
    assert not torch.equal(first, augment(images, generator(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_asked_for_is_nothing_done():
    images = as_tensor(rng().integers(0, 256, (5, 8, 8, 3), np.uint8))
    assert torch.equal(Augment(pad=0, flip=False)(images, generator()), images)
    flipped = Augment(pad=0)(images, generator())
    both = [bool(torch.equal(a, b)) or bool(torch.equal(a, b.flip(2))) for a, b in zip(flipped, images, strict=True)]
    assert all(both)
    assert not torch.equal(flipped, images)


def test_cutout_cuts_one_square_that_may_hang_over_the_edge():
    n = 3000
    out = cutout(torch.ones(n, 2, 32, 32), generator(), size=16, probability=0.5)
    assert torch.equal(out[:, 0], out[:, 1])
    zeros = (out[:, 0] == 0).numpy()
    cut = zeros.any(axis=(1, 2))
    assert abs(cut.mean() - 0.5) < 4 * np.sqrt(0.25 / n)
    starts = []
    for square in zeros[cut]:
        rows, columns = np.flatnonzero(square.any(axis=1)), np.flatnonzero(square.any(axis=0))
        assert square.sum() == len(rows) * len(columns)
        assert np.array_equal(rows, np.arange(rows[0], rows[-1] + 1))
        assert np.array_equal(columns, np.arange(columns[0], columns[-1] + 1))
        # A whole band is 16 wide; one at an edge keeps the half that is inside.
        for band in (rows, columns):
            assert len(band) == 16 or (8 <= len(band) < 16 and (band[0] == 0 or band[-1] == 31))
            starts.append(band[-1] - 15 if band[0] == 0 else band[0])
    # The corner runs over -8..23, each of the 32 places as often as the others.
    counts = np.bincount(np.array(starts) + 8, minlength=32)
    assert len(counts) == 32
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 80  # 31 degrees of freedom: 99.999 %
    assert torch.equal(cutout(out, generator(), probability=0.0), out)


def test_cutout_of_normalised_images_has_their_mean_colour():
    images = torch.full((64, 3, 32, 32), 200, dtype=torch.uint8)
    out = Augment(cutout=16)(normalize(images, CIFAR_MEAN, CIFAR_STD), generator())
    values = out.permute(0, 2, 3, 1).reshape(-1, 3).unique(dim=0)
    bright = [(200 - m) / s for m, s in zip((125.3, 123.0, 113.9), (63.0, 62.1, 66.7), strict=True)]
    assert torch.allclose(values, torch.tensor([[0.0] * 3, bright]), atol=1e-5)


def test_normalize_and_pixel_statistics_agree():
    images = rng().integers(0, 256, (50, 7, 5, 3), np.uint8)
    mean, std = pixel_statistics(images)
    scaled = images.astype(np.float64) / 255
    assert np.allclose(mean, scaled.mean(axis=(0, 1, 2)), atol=1e-12)
    assert np.allclose(std, scaled.std(axis=(0, 1, 2)), atol=1e-12)
    out = normalize(as_tensor(images), mean, std)
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    expected = (scaled - np.array(mean)) / np.array(std)
    assert np.abs(out.permute(0, 2, 3, 1).numpy() - expected).max() < 1e-5
    assert normalize(as_tensor(images)[:0], mean, std).shape == (0, 3, 7, 5)


def test_augmentation_errors():
    images = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="`pad` must be less than"):
        Augment()(images, generator())
    with pytest.raises(TypeError, match=r"must be bytes .* got torch.float32"):
        normalize(images.float(), (0,) * 3, (1,) * 3)
    with pytest.raises(ValueError, match="each of the 3 channels"):
        normalize(images, (0,), (1,))
    with pytest.raises(ValueError, match="`cutout_probability`"):
        Augment(cutout_probability=2.0)
