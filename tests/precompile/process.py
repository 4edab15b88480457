"""What each process of ``test_processes.py`` does; prints JSON.

python process.py save | restore | refuse | changed | artifacts
"""

import copy
import importlib
import json
import os
import sys
import warnings
from pathlib import Path

import net
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F

HERE = Path(__file__).parent
AHEAD, BUNDLE = HERE / "ahead.bin", HERE / "bundle.bin"


def error(found, exact):
    return float((found.double() - exact).abs().max())


def infer(model, x, **kwargs):
    """How far a compiled model's result is from float64's, and how often Dynamo traced."""
    model.eval()
    before = counters["frames"]["total"]
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        found = torch.compile(model, **{"backend": "dovetail", **kwargs})(x)
        exact = copy.deepcopy(model).double()(x.double())
    ours = [str(w.message) for w in told if w.category.__name__ == "PrecompileWarning"]
    traces = counters["frames"]["total"] - before
    return {"error": error(found, exact), "traces": traces, "told": ours}


def train(model, x, compiled):
    exact = copy.deepcopy(model).double()
    compiled(x).backward()
    exact(x.double()).backward()
    return {
        "error": error(model.linear.weight.grad, exact.linear.weight.grad),
        "mean": error(model.norm.running_mean, exact.norm.running_mean),
    }


def write(total):
    x = torch.arange(4.0)
    result = torch.compile(net.count_up, backend="dovetail")(x, total)
    return error(result, x.double().exp() * 2)


def all_ways():
    """Inference, training, and a function that writes to its argument."""
    found = {"inference": infer(*net.make())}
    before = counters["frames"]["total"]
    model, x = net.make(net.Step)
    found["training"] = train(model, x, torch.compile(model, backend="dovetail"))
    found["written"] = {"error": write(torch.zeros(4))}
    found["traces"] = counters["frames"]["total"] - before
    return found


def ahead(model, x, train):
    with torch._dynamo.config.patch(caching_precompile=False), torch.set_grad_enabled(train):
        compiled = torch.compile(model, backend="dovetail", fullgraph=True)
        return compiled.forward.aot_compile(((x,), {}))


def save():
    found = all_ways()
    # Models of one class that differ in a function: PyTorch's precompile drops the guard on it.
    acts = [F.gelu, F.silu, torch.sigmoid, lambda x: F.elu(x), lambda x: F.selu(x)]
    found["acts"] = [infer(*net.make(act=act)) for act in acts]
    for name, cls in (("ahead", net.Net), ("ahead_step", net.Step)):
        model, x = net.make(cls)
        model.train(cls is net.Step)
        ahead(model, x, cls is net.Step).save_compiled_function(str(HERE / f"{name}.bin"))
    torch._dynamo.reset()
    model, x = net.make()
    infer(model, x)  # the last entry of a name is the one that is kept
    data, info = torch.compiler.save_cache_artifacts()
    BUNDLE.write_bytes(data)
    return {**found, "types": sorted(info.artifacts)}


def load_ahead(name):
    with (HERE / f"{name}.bin").open("rb") as file:
        return torch.compiler.load_compiled_function(file)


def restore():
    found = all_ways()
    with torch._dynamo.config.patch(caching_precompile=False):
        loaded = load_ahead("ahead")
        model, x = net.make()
        model.eval()
        with torch.no_grad():
            found["ahead"] = error(loaded(model, x), model.double()(x.double()))
        model, x = net.make(net.Step)
        step = load_ahead("ahead_step")
        found["ahead_step"] = train(model, x, lambda x: step(model, x))
    model, x = net.make()
    model.eval()
    result = torch.compile(model, backend="dovetail")(x)  # with gradients, which was not kept
    found["needs_grad"] = result.requires_grad
    found["other_act"] = infer(*net.make(act=F.gelu))
    found["same_act"] = infer(*net.make())
    return found


def refuse():
    from dovetail.precompile import made_for

    found = {}

    def case(name, **kwargs):
        torch._dynamo.reset()
        found[name] = infer(*net.make(), **kwargs)

    case("backend", backend="eager")
    case("option", options={"freeze": True})
    case("harmless", options={"keep_graphs": True})  # does not change the code
    torch._dynamo.reset()
    other = importlib.import_module("other")  # with a Net of its own on the same line
    found["name"] = infer(*other.make())
    processor = os.environ.pop("DOVETAIL_PROCESSOR", None)
    os.environ["DOVETAIL_PROCESSOR"] = "armv8-a" if processor == "armv8-a" else "x86-64-v3"
    case("processor")
    found["ahead"] = refused_ahead()
    os.environ.pop("DOVETAIL_PROCESSOR")
    digest, made_for.own_digest = made_for.own_digest, lambda: "of other sources"
    made_for._versions.cache_clear()
    case("sources")
    made_for.own_digest = digest
    made_for._versions.cache_clear()
    gelu, F.linear = F.linear, lambda *args: gelu(*args)
    case("module")
    F.linear = gelu
    damage()
    case("damaged")
    return found


def refused_ahead():
    try:
        with torch._dynamo.config.patch(caching_precompile=False):
            load_ahead("ahead")
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


def damage():
    """Change a byte of our part in every entry, and nothing of PyTorch's."""
    for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "dynamo").glob("*/entry"):
        data = bytearray(path.read_bytes())
        at = data.find(b"dvtpre01")
        data[at + 200] ^= 1
        path.write_bytes(data)


def changed():
    return {"inference": infer(*net.make())}


def artifacts():
    from dovetail import cache, history

    cache.register_artifact_type()
    info = torch.compiler.load_cache_artifacts(BUNDLE.read_bytes())
    found = {"types": sorted(info.artifacts)}
    with torch._dynamo.config.patch(caching_precompile=False):
        found["traced"] = infer(*net.make())
    found["cache"] = [verdict.state for verdict in history.recent()[-1].cache]
    torch._dynamo.reset()
    return {**found, "restored": infer(*net.make())}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
