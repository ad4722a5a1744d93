"""Losses against their formulas, published check values and extreme logits."""

import pytest
import torch
from torch.nn import functional

from snugnet.errors import BadInput
from snugnet.training import losses

STUDENT = torch.tensor([[2.0, 0, -1], [0, 0, 3]], dtype=torch.float64)
TEACHER = torch.tensor([[0.0, 1, 0], [0, 0, 1]], dtype=torch.float64)


def test_label_smoothing_and_hard_labels_agree_with_torch():
    labels = torch.tensor([0, 2])
    targets = functional.one_hot(labels, 3).double()
    for smoothing in (0.0, 0.1):
        ours = losses.cross_entropy(STUDENT, targets, smoothing)
        assert ours == pytest.approx(functional.cross_entropy(STUDENT, labels, label_smoothing=smoothing).item())


def test_wrong_class_count_is_named():
    with pytest.raises(BadInput, match="3 outputs for 5 classes"):
        losses.cross_entropy(STUDENT, torch.eye(5)[:2])


def test_distillation_mixes_both_terms():
    targets = torch.eye(3, dtype=torch.float64)[:2]
    p, q = (TEACHER / 2).softmax(-1), (STUDENT / 2).softmax(-1)
    kl = (p * (p / q).log()).sum(-1).mean()
    expected = 0.1 * losses.cross_entropy(STUDENT, targets) + 0.9 * 4 * kl
    assert losses.distillation(STUDENT, TEACHER, targets, weight=0.9, temperature=2).item() == pytest.approx(
        expected.item()
    )
    entropy = -(p * p.log()).sum(-1).mean()
    assert losses.soft_cross_entropy(STUDENT, TEACHER, 2).item() == pytest.approx((kl + entropy).item())


def test_adaptive_alpha_matches_the_check_values():
    student = STUDENT.clone().requires_grad_()
    low, high = (losses.alpha_divergence(STUDENT, TEACHER, a) for a in (-1.0, 1.0))
    assert low.tolist() == pytest.approx([1.195165, 0.227485], abs=1e-6)
    assert high.tolist() == pytest.approx([0.982577, 0.391244], abs=1e-6)
    surrogate, value = losses.adaptive_alpha(student, TEACHER)
    assert surrogate.item() == pytest.approx(0.49131001, abs=1e-8)
    assert value.item() == pytest.approx((1.195165 + 0.391244) / 2, abs=1e-6)
    surrogate.backward()
    expected = [[0.249313, -0.182262, -0.06705], [-0.083332, -0.083332, 0.166663]]
    assert torch.allclose(student.grad, torch.tensor(expected, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_unclipped_surrogate_has_the_true_gradient(alpha):
    student = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    teacher = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (true,) = torch.autograd.grad(losses.alpha_divergence(student, teacher, alpha, clip=None).sum(), student)
    (ours,) = torch.autograd.grad(losses._surrogate(student, teacher, alpha, None).sum(), student)
    assert torch.allclose(ours, true, atol=1e-13)


@pytest.mark.parametrize("alpha", [-1.0, 0.5, 2.0])
def test_limits_join_the_family(alpha):
    near = losses.alpha_divergence(STUDENT, TEACHER, 1 - 1e-6, clip=None)
    assert torch.allclose(near, losses.alpha_divergence(STUDENT, TEACHER, 1.0), atol=1e-4)
    near = losses.alpha_divergence(STUDENT, TEACHER, 1e-6, clip=None)
    assert torch.allclose(near, losses.alpha_divergence(STUDENT, TEACHER, 0.0), atol=1e-4)
    assert (losses.alpha_divergence(STUDENT, TEACHER, alpha, clip=None) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gap", [1.0, 100.0, 1e4, 1e30, 3e38])
def test_finite_for_any_finite_logits(dtype, gap):
    student = torch.tensor([[gap, -gap, 0], [0, 0, gap]], dtype=dtype).requires_grad_()
    teacher = torch.tensor([[-gap, gap, 0], [gap, 0, 0]], dtype=dtype)
    targets = torch.eye(3)[:2]
    for alphas in ((-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0)):
        surrogate, value = losses.adaptive_alpha(student, teacher, alpha_min=alphas[0], alpha_max=alphas[1])
        (gradient,) = torch.autograd.grad(surrogate, student)
        assert surrogate.isfinite() and value.isfinite() and gradient.isfinite().all()
    mixed = losses.distillation(student, teacher, targets)
    assert gap > 1e4 or mixed.isfinite()
