"""Every method passes one suite; then what each is for."""

from dataclasses import replace

import pytest
import torch

from snugnet.errors import BadInput
from snugnet.nets import build
from snugnet.nets.elasticise import elastic
from snugnet.nets.supernet import Supernet
from snugnet.seeds import Seed
from snugnet.space.layout import Layout
from snugnet.space.presets import preset
from snugnet.space.sampling import largest
from snugnet.space.space import Head, SearchSpace, Stage, Stem
from snugnet.training import methods
from snugnet.training.method import MethodState, PhaseContext, Step
from standin import SPACE, Plain, Standin, toy_data

MADE = {name: make() for name, make in methods.METHODS.items() if name != "tfnas"}  # which has a model of its own
MADE["attentive"] = methods.attentive(rows=1000)


class Watched:
    """Passes calls on to a model and remembers them."""

    def __init__(self, model):
        self.model, self.calls = model, []

    def __call__(self, images, *path, **options):
        self.calls.append(path[0] if path else None)
        return self.model(images, *path, **options)

    def __getattr__(self, name):
        return getattr(self.model, name)


def started(method, model):
    context = PhaseContext(
        net=model,
        about=toy_data().about,
        space=getattr(model, "space", None),
        tables={},
        steps=10,
        epochs=1,
        seed=Seed(0),
        device=torch.device("cpu"),
        resumed=False,
    )
    return method.start(context) if method.name in ("sandwich", "alpha", "attentive") else MethodState()


def one_step(method, model, shard=0, teacher=None, number=0, epoch=0.0, state=None):
    net, losses = Watched(model), []
    state = state or started(method, model)
    generator = torch.Generator().manual_seed(shard)

    def backward(loss, inputs=None):
        losses.append(loss.item())
        loss.backward()

    seed = Seed(0).fold_in("step", number)
    step = Step(
        net=net,
        images=torch.rand(6, 3, 8, 8, generator=generator),
        targets=torch.eye(4)[[0, 1, 2, 3, 0, 1]],
        shared=seed,
        own=seed.fold_in("shard", shard),
        backward=backward,
        teacher=teacher,
        epoch=epoch,
        second=lambda: None,
    )
    if state.survey is not None:
        step = replace(step, agreed=state.survey(step))
    return net, losses, method.step(step, state)


@pytest.mark.parametrize("name", sorted(MADE))
def test_contract(name):
    method = MADE[name]
    method.check()
    assert method.describe()["lr"] == method.lr
    runs = []
    for _ in range(2):
        model = Standin(dropout=0) if method.elastic else Plain()
        method.prepare(model)
        _, losses, metrics = one_step(method, model, teacher=Plain(1).eval())
        assert losses and not metrics["loss"].requires_grad and metrics["loss"].isfinite()
        runs.append((losses, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
    assert runs[0][0] == runs[1][0]
    assert any(g is not None and g.abs().sum() > 0 for g in runs[0][1])
    assert all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(runs[0][1], runs[1][1]))


def test_paper_settings_are_the_defaults():
    first, second = methods.largest(), methods.multipath()
    assert (first.epochs, second.epochs) == (250, 100)
    assert (second.lr, second.momentum, second.nesterov, second.weight_decay) == (0.1, 0.9, True, 1e-4)
    assert (second.label_smoothing, second.mixup, second.auto_augment) == (0.1, 0.2, "imagenet")


def test_largest_runs_the_largest_only():
    net, _, _ = one_step(methods.largest(), Standin())
    assert net.calls == [largest(net.space)]


def test_multipath_gives_every_image_a_path_and_every_shard_others():
    first, _, _ = one_step(methods.multipath(), Standin())
    other, _, _ = one_step(methods.multipath(), Standin(), shard=1)
    assert len(first.calls[0]) == 6
    assert (first.calls[0].choice != other.calls[0].choice).any()


def test_singlepath_agrees_between_shards_and_changes_between_steps():
    calls = [one_step(methods.singlepath(), Standin(), shard=shard)[0].calls for shard in (0, 1)]
    assert calls[0] == calls[1]
    later = [one_step(methods.singlepath(), Standin(), number=n)[0].calls[0] for n in range(12)]
    assert len(set(later)) > 3


@pytest.mark.parametrize("make", [methods.multipath, methods.singlepath])
def test_in_place_distillation_hears_the_largest_first(make):
    net, losses, metrics = one_step(make(distill=0.7), Standin(dropout=0))
    assert net.calls[0] == largest(net.space) and len(losses) == 2
    assert losses[0] == pytest.approx(metrics["teacher_loss"].item()) and losses[1] == pytest.approx(
        metrics["loss"].item()
    )


def test_paths_leave_the_largest_network_step_by_step():
    method = methods.multipath(curriculum_epochs=2)
    shares = []
    for epoch in (0.0, 1.0, 2.0):
        paths = one_step(method, Standin(), epoch=epoch)[0].calls[0]
        top = Layout(SPACE).encode([largest(SPACE)])
        shares.append(float((paths.choice[:, 0] == top.choice[:, 0]).mean()))
    assert shares[0] == 1.0 and 0.5 < shares[1] < 1.0 and shares[2] < shares[1]


def test_a_ramped_single_path_starts_as_the_largest():
    method = methods.singlepath(curriculum_epochs=2)
    calls = [one_step(method, Standin(), epoch=epoch, number=3)[0].calls[0] for epoch in (0.0, 2.0)]
    assert calls[0] == largest(SPACE) and calls[1] == one_step(methods.singlepath(), Standin(), number=3)[0].calls[0]


def supernet():
    torch.manual_seed(0)
    return Supernet(preset("hardcore-lowres", classes=4, width=0.25, resolution=16))


def test_preparation_of_a_phase_changes_what_it_says():
    net = supernet()
    methods.largest(se_bias_init=True).prepare(net)
    opened = [m.expand.bias for m in net.modules() if hasattr(m, "gate")]
    assert opened and all(bool((bias == 2).all()) for bias in opened)
    methods.multipath(inherit_kernels=True).prepare(net)
    kernels = net.blocks()[1].operations[0].depthwise
    assert torch.equal(kernels["3"].conv.weight, kernels["5"].conv.weight[:, :, 1:4, 1:4])
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    methods.multipath().prepare(net)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("make", [methods.multipath, methods.singlepath])
def test_sorting_leaves_the_largest_network_what_it_was(make):
    net = supernet().eval()
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.weight.uniform_(0.5, 1.5)
                layer.running_var.fill_(0.05)
        images = torch.rand(3, 3, 16, 16)
        before = net(images, largest(net.space))
        first = net.blocks()[1].operations[0].project.conv.weight.clone()
        make(sort_channels=True).prepare(net)
        assert torch.allclose(before, net(images, largest(net.space)), rtol=1e-4, atol=1e-5)
    assert not torch.equal(first, net.blocks()[1].operations[0].project.conv.weight)


def test_images_say_which_channels_matter_where_norms_do_not():
    """A channel whose activation is always zero, behind the largest weights: first by L1, last by what the loss loses."""
    space = SearchSpace(
        name="trained",
        classes=4,
        resolutions=(16,),
        stem=Stem(widths=(8,)),
        stages=(Stage.of(8, depth=1, expands=(4,), kernels=(3,)),),
        head=Head(kind="conv-pool", widths=(16,)),
    )
    network = build(largest(space), space).eval()
    images = [(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3]))]
    ends = {}
    for how in (True, "taylor"):
        net = elastic(network, expands=(0.5, 1)).eval()
        operation = net.blocks()[0].operations[0]
        with torch.no_grad():
            (deep,) = operation.depthwise.values()
            deep.norm.bias.fill_(0.5)
            deep.norm.weight[3], deep.norm.bias[3] = 0.0, 0.0
            operation.project.conv.weight[:, 3] = 7.0
            before = net(images[0][0], largest(net.space))
        methods.multipath(sort_channels=how).prepare_by_images(net, lambda _: iter(images))
        ends[how] = [bool((operation.project.conv.weight[:, end] == 7).all()) for end in (0, -1)]
        assert torch.allclose(before, net(images[0][0], largest(net.space)), rtol=1e-4, atol=1e-5)
    assert ends == {True: [True, False], "taylor": [False, True]}
    mixed = Supernet(replace(space, stages=(Stage.of(8, depth=1, expands=(1, 4), kernels=(3,)),)))
    with pytest.raises(BadInput, match="share one set of channels"):
        methods.multipath(sort_channels="taylor").prepare_by_images(mixed, lambda _: iter(images))


def test_finetune_needs_its_teacher():
    with pytest.raises(BadInput, match="teacher"):
        one_step(methods.finetune(), Plain())


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"lr": 0},
        {"lr_per": 0},
        {"ema": 1.0},
        {"label_smoothing": 1.0},
        {"momentum": 1.0},
        {"mixup": -0.1},
        {"warmup_epochs": 300},
        {"clip_norm": 1.0, "clip_value": 1.0},
        {"split": "all"},
        {"distill": 1.5},
        {"temperature": 0},
        {"curriculum_epochs": -1},
    ],
)
def test_settings_out_of_range(bad):
    with pytest.raises(BadInput):
        methods.multipath(**bad).check()
