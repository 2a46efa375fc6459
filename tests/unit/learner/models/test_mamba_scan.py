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


@pytest.mark.parametrize(("length", "groups"), [(1, 1), (7, 1), (8, 2), (9, 4), (30, 2)])
def test_the_scan_and_its_gradients_equal_the_recurrence(length, groups):
    torch.manual_seed(length)
    inputs = (
        torch.randn(2, length, 4, 3),
        torch.rand(2, length, 4),
        -torch.arange(1.0, 5.0),
        torch.randn(2, length, groups, 5),
        torch.randn(2, length, groups, 5),
        torch.randn(4),
    )
    ours, theirs = ([tensor.double().requires_grad_() for tensor in inputs] for _ in range(2))
    x, dt, a, b, c, d = ours
    y = chunk_scan(x, dt, a, b, c, chunk_size=8, d_H=d)
    expected = recurrence(*theirs)
    assert torch.allclose(y, expected, atol=1e-12)
    y.sin().sum().backward()
    expected.sin().sum().backward()
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert torch.allclose(found.grad, wanted.grad, atol=1e-10)


def one_after_another(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]


@pytest.mark.parametrize("lengths", [(30,), (1, 1, 1), (3, 8, 17, 1, 1, 2), (8, 8, 16), (7, 30, 40), (40, 2)])
def test_sequences_of_a_row_are_scanned_like_each_alone(lengths):
    torch.manual_seed(sum(lengths))
    total = sum(lengths)
    inputs = (
        torch.randn(1, total, 4, 3),
        torch.rand(1, total, 4),
        -torch.arange(1.0, 5.0),
        torch.randn(1, total, 2, 5),
        torch.randn(1, total, 2, 5),
        torch.randn(4),
    )
    ours, theirs = ([tensor.double().requires_grad_() for tensor in inputs] for _ in range(2))
    x, dt, a, b, c, d = ours
    y = chunk_scan(x, dt, a, b, c, chunk_size=8, d_H=d, sequences_BT=one_after_another(lengths))
    parts = zip(*(theirs[place].split(lengths, dim=1) for place in (0, 1, 3, 4)), strict=True)
    expected = torch.cat([recurrence(x, dt, theirs[2], b, c, theirs[5]) for x, dt, b, c in parts], dim=1)
    assert torch.allclose(y, expected, atol=1e-12)
    y.sin().sum().backward()
    expected.sin().sum().backward()
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert torch.allclose(found.grad, wanted.grad, atol=1e-10)


@pytest.mark.parametrize("lengths", [(9,), (1, 1, 2, 5), (4, 3), (2,)])
@pytest.mark.parametrize("bias", [False, True])
def test_sequences_of_a_row_are_convolved_like_each_alone(lengths, bias):
    torch.manual_seed(0)
    values = [torch.randn(1, 6, sum(lengths)), torch.randn(6, 4), *([torch.randn(6)] if bias else [])]
    ours, theirs = ([tensor.double().requires_grad_() for tensor in values] for _ in range(2))
    y = convolve(ours[0], ours[1], ours[2] if bias else None, activation="silu", seq_idx=one_after_another(lengths))
    expected = torch.cat(
        [CONVOLUTION(part, *theirs[1:], activation="silu") for part in theirs[0].split(lengths, dim=2)], dim=2
    )
    assert torch.allclose(y, expected, atol=1e-12)
    y.sin().sum().backward()
    expected.sin().sum().backward()
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert torch.allclose(found.grad, wanted.grad, atol=1e-10)


def test_a_fast_decay_over_a_long_chunk_stays_finite():
    x = torch.ones(1, 64, 1, 1)
    ones = torch.ones(1, 64, 1, 1)
    dt = torch.full((1, 64, 1), 100.0, requires_grad=True)
    y = chunk_scan(x, dt, torch.tensor([-8.0]), ones, ones, chunk_size=64, d_H=torch.zeros(1))
    y.sum().backward()
    assert y.isfinite().all()
    assert dt.grad.isfinite().all()
