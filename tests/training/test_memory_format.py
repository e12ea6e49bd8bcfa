"""Channels-last order: chosen where it is faster, equal to contiguous order, and avoided for layers on which torch crashes."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pufferfish_bench import lowrank
from pufferfish_bench.models.resnet18 import ResNet18
from pufferfish_bench.models.resnet50 import ResNet50
from pufferfish_bench.models.vgg import vgg11
from pufferfish_bench.training import memory_format

CPU = torch.device("cpu")
NETS = {
    "resnet18": lambda: ResNet18(classes=10, width=0.125, stem_norm=False),
    "resnet50": lambda: ResNet50(classes=10, width=0.0625, inner_width=1.0),
    "vgg11": lambda: vgg11(classes=10, width=0.125),
}


def one_by_one() -> nn.Conv2d:
    return nn.Conv2d(4, 8, 1, stride=2, bias=False)


@pytest.mark.parametrize(
    ("device", "choice", "channels_last"),
    [
        ("cpu", "auto", True),
        ("cuda", "auto", True),
        ("mps", "auto", False),
        ("cpu", False, False),
        ("cuda", False, False),
        ("mps", True, True),
    ],
)
def test_auto_is_channels_last_on_cpus_and_cuda(device: str, choice: bool | str, channels_last: bool):
    model = nn.Conv2d(3, 4, 3)
    memory_format.prepare(model, torch.device(device), choice)
    assert memory_format.is_channels_last(model) == channels_last


def trained(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and all gradients after one backward pass, in double precision."""
    model = copy.deepcopy(model).double().train()
    loss = F.cross_entropy(model(images.double()), labels)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_step_in_channels_last_order_equals_one_in_contiguous_order(name: str, hybrid: bool):
    torch.manual_seed(0)
    model = NETS[name]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if hybrid:
        lowrank.restructure(model, lowrank.choose(model, keep=[], first=None, rank_ratio=0.25, ranks=None).ranks)
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    reference = trained(model, images, labels)
    memory_format.prepare(model, CPU, "auto")
    assert memory_format.is_channels_last(model)
    last = trained(model, images.contiguous(memory_format=torch.channels_last), labels)
    torch.testing.assert_close(last, reference, rtol=1e-8, atol=1e-8)


def test_preparing_twice_changes_nothing_more():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), one_by_one())
    for _ in range(2):
        memory_format.prepare(model, CPU, "auto")
    assert [len(layer._forward_pre_hooks) for layer in model] == [0, 1]


@settings(max_examples=60, deadline=None)
@given(
    channels=st.integers(1, 15),
    out=st.integers(1, 20),
    size=st.integers(1, 17),
    stride=st.integers(2, 3),
    batch=st.integers(1, 5),
)
def test_a_layer_on_which_torch_crashes_computes_in_contiguous_order(channels: int, out: int, size: int, stride: int, batch: int):
    layer = nn.Conv2d(channels, out, 1, stride=stride)
    plain = copy.deepcopy(layer)
    memory_format.prepare(layer, CPU, "auto")
    seen = []
    layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = torch.randn(batch, channels, size, size)
    last = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    x.requires_grad_()
    g = torch.randn(layer(last).shape)
    layer(last).backward(g)
    plain(x).backward(g)
    (entered, *_) = seen
    standard = torch.empty(entered.shape)
    assert (
        entered.stride() == standard.stride()
    )  # is_contiguous() is not enough: it is also true of channels-last with one channel
    assert layer.weight.stride() == torch.empty(layer.weight.shape).stride()
    torch.testing.assert_close(last.grad, x.grad)
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-4)


CRASH = """
import torch
from torch import nn
from pufferfish_bench.training import memory_format
torch.set_num_threads(2)
for channels in range(1, 16):
    for out in (1, 2, 3, 5, 8, 9, 16):
        for size in (8, 7, 16):
            for batch in (4, 33):
                layer = nn.Conv2d(channels, out, 1, stride=2, bias=False)
                memory_format.prepare(layer, torch.device("cpu"), "auto")
                x = torch.randn(batch, channels, size, size).contiguous(memory_format=torch.channels_last).requires_grad_()
                y = layer(x)
                y.backward(torch.randn_like(y))
"""


def test_strided_1x1_convolutions_of_few_channels_do_not_crash_the_process():
    """Without the exception glibc ends the process, for example with `free(): invalid size`. Needs two threads."""
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_in_place_operations_of_vgg_give_the_gradients_of_the_plain_net():
    torch.manual_seed(0)
    model = vgg11(classes=10, width=0.125).double().eval()  # without dropout; BatchNorm in training mode
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.train()

    def plain(x: torch.Tensor) -> torch.Tensor:
        for number in range(1, model.convolutions + 1):
            x = torch.relu(model.features[f"norm{number}"](model.features[f"conv{number}"](x)))
            x = F.max_pool2d(x, 2) if number in model.pool_after else x
        x = x.mean(dim=(2, 3))
        for layer in model.classifier:
            x = torch.relu(x) if isinstance(layer, nn.ReLU) else layer(x)
        return x

    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    outputs = model(images), plain(images)
    torch.testing.assert_close(*outputs)
    gradients = [torch.autograd.grad(output.square().sum(), list(model.parameters())) for output in outputs]
    torch.testing.assert_close(*gradients)
