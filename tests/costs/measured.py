"""What torch itself takes and keeps of memory in a real pass on the CPU."""

import gc

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from querykey.costs.inputs import Inputs


def measured_peak(model, inputs, sizes, train):
    """Bytes of weights, buffers and inputs, and the most that was allocated beside them."""
    known = [*model.parameters(), *model.buffers()]

    def made(named):
        shape = [sizes.get(axis, axis) for axis in named.axes]
        known.append(torch.randint(0, 20, shape) if named.kind == "tokens" else torch.randn(shape))
        return known[-1]

    args, kwargs = Inputs.of(inputs).map(made)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in known}

    def step():
        out = model(*args, **kwargs)
        first = out if isinstance(out, torch.Tensor) else out[0]
        if train:
            first.backward(torch.ones_like(first))

    gc.collect()
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.set_grad_enabled(train),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile,
    ):
        step()
    model.zero_grad()
    events = profile.profiler.kineto_results.events()
    memory = sorted(
        (e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]"
    )
    now = most = 0
    for _, _, size in memory:
        now += size
        most = max(most, now)
    return sum(storage.nbytes() for storage in storages.values()) + most


def measured_saved(model, inputs, attention):
    """Bytes that autograd keeps in a real pass, each memory once, without weights and inputs."""
    known = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *inputs.values()]}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, sdpa_kernel(attention):
        model(**inputs)
    return sum(storage.nbytes() for storage in kept.values())
