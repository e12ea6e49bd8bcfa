"""The paper's nets compared with torchvision's."""

import pytest
import torch

from pufferfish_bench.models.resnet50 import ResNet50
from pufferfish_bench.models.torchvision_import import torchvision


@pytest.mark.parametrize(("theirs", "inner_width"), [("resnet50", 1), ("wide_resnet50_2", 2)])
def test_with_torchvisions_weights_the_net_computes_the_same_as_torchvisions(theirs: str, inner_width: int):
    torch.manual_seed(0)
    reference = getattr(torchvision.models, theirs)(num_classes=10)
    for layer in reference.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):  # fresh BatchNorms are all equal, so a mix-up would not show
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.bias)
    ours = ResNet50(classes=10, width=1.0, inner_width=inner_width)
    ours.load_state_dict(reference.state_dict())
    images = torch.randn(2, 3, 64, 64)
    for mode in (True, False):  # with batch statistics, then with the running statistics
        assert torch.equal(ours.train(mode)(images), reference.train(mode)(images))
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, reference.state_dict()[name])


def test_weights_are_initialised_from_the_same_distribution_as_torchvisions():
    torch.manual_seed(0)
    ours, theirs = ResNet50(classes=1000, width=1.0, inner_width=1), torchvision.models.resnet50()
    for name, tensor in theirs.state_dict().items():
        if tensor.is_floating_point():
            spread, expected = ours.state_dict()[name].std(), tensor.std()
            assert float(spread) == pytest.approx(float(expected), rel=0.1, abs=1e-6), name


@pytest.mark.parametrize("width", [0.125, 0.25, 1 / 3])
def test_a_miniature_has_the_same_layers_and_scaled_channels(width: float):
    small, full = ResNet50(classes=10, width=width, inner_width=2), ResNet50(classes=10, width=1.0, inner_width=2)
    assert small.state_dict().keys() == full.state_dict().keys()
    for name, tensor in small.state_dict().items():
        for place, (side, whole) in enumerate(zip(tensor.shape, full.state_dict()[name].shape, strict=True)):
            fixed = place > 1 or (name == "conv1.weight" and place == 1) or (name.startswith("fc") and place == 0)
            expected = whole if fixed else whole * width  # kernel sizes, image channels and classes are not scaled
            assert expected - 4 <= side <= expected, name  # rounded down to a multiple of four
    assert small(torch.zeros(2, 3, 40, 50)).shape == (2, 10)
