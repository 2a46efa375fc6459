from collections.abc import Callable

import pytest
import torch

from temper.learner.models.mamba_scan import CONVOLUTION, chunk_scan, convolve


def recurrence(x, dt, a, b, c, d):
    """The definition, one token at a time."""
    heads_each = x.shape[2] // b.shape[2]
    b, c = b.repeat_interleave(heads_each, 2), c.repeat_interleave(heads_each, 2)
    state = torch.zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3], dtype=x.dtype)
    outputs = []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None, None]
        state = (a[:, None, None] * step).exp() * state + step * x[:, t, :, :, None] * b[:, t, :, None, :]
        outputs.append((state * c[:, t, :, None, :]).sum(-1) + d[:, None] * x[:, t])
    return torch.stack(outputs, dim=1)


def scan_inputs(rows: int, length: int, groups: int) -> list[torch.Tensor]:
    torch.manual_seed(length)
    return [
        torch.randn(rows, length, 4, 3),
        torch.rand(rows, length, 4),
        -torch.arange(1.0, 5.0),
        torch.randn(rows, length, groups, 5),
        torch.randn(rows, length, groups, 5),
        torch.randn(4),
    ]


Computed = Callable[..., torch.Tensor]


def assert_same_with_gradients(ours: Computed, theirs: Computed, values: list[torch.Tensor]) -> None:
    """Compare two computations of the same inputs, and the gradients of these."""
    found, wanted = ([tensor.double().requires_grad_() for tensor in values] for _ in range(2))
    y, expected = ours(*found), theirs(*wanted)
    assert torch.allclose(y, expected, atol=1e-12)
    y.sin().sum().backward()
    expected.sin().sum().backward()
    for one, other in zip(found, wanted, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, atol=1e-10)


@pytest.mark.parametrize(("length", "groups"), [(1, 1), (7, 1), (8, 2), (9, 4), (30, 2)])
def test_the_scan_and_its_gradients_equal_the_recurrence(length, groups):
    def scan(x, dt, a, b, c, d):
        return chunk_scan(x, dt, a, b, c, chunk_size=8, d_H=d)[0]

    assert_same_with_gradients(scan, recurrence, scan_inputs(2, length, groups))


def one_after_another(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


@pytest.mark.parametrize("lengths", [(30,), (1, 1, 1), (3, 8, 17, 1, 1, 2), (8, 8, 16), (7, 30, 40), (40, 2)])
def test_sequences_of_a_row_are_scanned_like_each_alone(lengths):
    def scan(x, dt, a, b, c, d):
        return chunk_scan(x, dt, a, b, c, chunk_size=8, d_H=d, sequences_BT=one_after_another(lengths))[0]

    def each_alone(x, dt, a, b, c, d):
        parts = zip(*(tensor.split(lengths, dim=1) for tensor in (x, dt, b, c)), strict=True)
        return torch.cat([recurrence(x, dt, a, b, c, d) for x, dt, b, c in parts], dim=1)

    assert_same_with_gradients(scan, each_alone, scan_inputs(1, sum(lengths), 2))


@pytest.mark.parametrize("lengths", [(9,), (1, 1, 2, 5), (4, 3), (2,)])
@pytest.mark.parametrize("bias", [False, True])
def test_sequences_of_a_row_are_convolved_like_each_alone(lengths, bias):
    torch.manual_seed(0)

    def whole(x, weights, bias=None):
        return convolve(x, weights, bias, activation="silu", seq_idx=one_after_another(lengths))

    def each_alone(x, *weights):
        return torch.cat([CONVOLUTION(part, *weights, activation="silu") for part in x.split(lengths, dim=2)], dim=2)

    values = [torch.randn(1, 6, sum(lengths)), torch.randn(6, 4), *([torch.randn(6)] if bias else [])]
    assert_same_with_gradients(whole, each_alone, values)


def test_a_fast_decay_over_a_long_chunk_stays_finite():
    x = torch.ones(1, 64, 1, 1)
    ones = torch.ones(1, 64, 1, 1)
    dt = torch.full((1, 64, 1), 100.0, requires_grad=True)
    y, _ = chunk_scan(x, dt, torch.tensor([-8.0]), ones, ones, chunk_size=64, d_H=torch.zeros(1))
    y.sum().backward()
    assert y.isfinite().all()
    assert dt.grad is not None
    assert dt.grad.isfinite().all()
