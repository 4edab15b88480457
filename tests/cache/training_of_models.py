"""Training steps of modules: what they hold, share, write and return."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.cache.training_steps import case, data, leaf, made, stepped, switched, switching


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index):
        return self.head(self.table(index).tanh())


@case
def tied_weights(wrap):
    model = made(Tied)
    return stepped(model, wrap(model), [torch.tensor([[1, 2, 6], [0, 0, 3]])])


@case
def tied_through_a_view(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ self.weight @ self.weight.t() + self.weight[0]

    model = made(Model)
    return stepped(model, wrap(model), [data(2, 3)])


@case
def batch_norm(wrap):
    model = made(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()))
    call = wrap(model)
    found = stepped(model, call, [data(2, 2, 5, 5)])
    model.eval()
    return [*found, *stepped(model, call, [data(2, 2, 5, 5)], 1)]


@case
def batch_norm_whose_statistics_are_fixed(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    model[1].eval()
    model[1].weight.requires_grad_(False)
    return stepped(model, wrap(model), [data(5, 3)])


@case
def spectral_norm(wrap):
    model = made(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)))
    return stepped(model, wrap(model), [data(5, 3)])


@case
def weight_norm(wrap):
    model = made(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)))
    return stepped(model, wrap(model), [data(5, 3)])


@case
def dropout(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 2)))
    return stepped(model, wrap(model), [data(3, 4)])


@case
def random_numbers(wrap):
    def fn(x):
        return x * torch.rand(4) + torch.randn_like(x), torch.randint(0, 9, (3,))

    torch.manual_seed(1)
    call, x = wrap(fn), leaf(4)
    result, drawn = call(x)
    result.sum().backward()
    again = call(x)[0]
    return [result, drawn, x.grad, again, torch.rand(2)]


@case
def checkpointed(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 4))

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False) + x

    model = made(Model)
    return stepped(model, wrap(model), [data(3, 4)])


@case
def recurrent(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            state = None
            for each in x:
                state = self.cell(each, state)
            return state

    model = made(Model)
    return stepped(model, wrap(model), [data(3, 2, 3)])


@case
def attention(wrap):
    model = made(lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True))
    return stepped(model, wrap(model), [data(2, 3, 8)])


@case
def embedding_that_rescales_its_rows(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3, max_norm=0.5, padding_idx=1)

        def forward(self, index):
            return self.table(index) * 2

    model = made(Model)
    return stepped(model, wrap(model), [torch.tensor([0, 1, 4, 4])])


@case
def channels_last_weights(wrap):
    model = made(lambda: nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)
    return stepped(model, wrap(model), [data(2, 3, 5, 5).to(memory_format=torch.channels_last)])


@case
def a_weight_clipped_in_the_forward_pass(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))
            self.register_buffer("average", torch.zeros(3, 3))

        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.5, 0.5)
                self.average.lerp_(self.weight, 0.1)
            return x @ self.weight + self.average

    model = made(Model)
    return stepped(model, wrap(model), [data(3, 3)])


@case
def a_buffer_replaced(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            y = self.linear(x)
            self.mean = self.mean * 0.9 + y.detach().mean(0)
            return y - self.mean, self.mean

    model = made(Model)
    call = wrap(model)
    return [*stepped(model, call, [data(2, 3)]), call(data(2, 3))]


@case
def parameters_that_are_not_used_or_not_trained(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(3, 3) for _ in range(3))
            self.two.requires_grad_(False)

        def forward(self, x):
            return self.two(self.one(x)) + self.three(x).detach()

    model = made(Model)
    return stepped(model, wrap(model), [data(2, 3)])


@case
def a_parameter_returned(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ self.weight, self.weight, self.weight.t(), self.weight.detach()

    model = made(Model)
    call = wrap(model)
    results = call(data(2, 3))
    same = results[1] is model.weight
    sum(r.sum() * (n + 1) for n, r in enumerate(results)).backward()
    return [same, *results, model.weight.grad, *stepped(model, call, [data(2, 3)])]


@case
def accumulated_over_batches(wrap):
    model = made(lambda: nn.Linear(3, 2))
    call = wrap(model)
    for seed in range(3):
        call(data(2, 3, seed=seed)).square().sum().backward()
    return [p.grad for p in model.parameters()]


@case
def two_passes_before_one_backward(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    call = wrap(model)
    (call(data(4, 3)) * call(data(4, 3, seed=8))).sum().backward()
    return [*(p.grad for p in model.parameters()), *model.buffers()]


@switching
def images_whose_sizes_vary(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(2, 7, 3), nn.BatchNorm2d(7), nn.Linear(7, 5)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
            return self.head(F.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1), 0.2)), x.shape[2]

    model = made(Model)
    call = wrap(model, dynamic=True)
    sizes = (11, 9, 16) if switched() else (12, 9, 14)
    return [stepped(model, call, [data(3, 2, size, size + 1)], 1) for size in sizes]


@switching
def a_batch_size_that_comes_to_vary(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    call = wrap(model)
    sizes = (6, 9, 8) if switched() else (5, 7, 8)
    return [stepped(model, call, [data(rows, 4)], 1) for rows in sizes]


@case
def the_whole_step(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))

    def step(x, target):
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        return loss

    call = wrap(step)
    losses = [call(data(5, 3), torch.tensor([0, 1, 1, 0, 1])) for _ in range(2)]
    return [*losses, *(p.grad for p in model.parameters())]


@switching
def one_parameter_trained_in_one_process_alone(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    model[0].weight.requires_grad_(switched())
    model[2].bias.requires_grad_(not switched())
    return stepped(model, wrap(model), [data(2, 3)])


@switching
def weights_shared_in_one_process_alone(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)))
    if switched():
        model[2].weight = model[0].weight
    return stepped(model, wrap(model), [data(2, 3)])
