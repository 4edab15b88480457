"""Reports made by hand: of any size, with any names."""


def call(name, reads=(), op="aten.add.Tensor", **more):
    return {
        "name": name,
        "op": op,
        "backend": "cpu",
        "segment": "segment_0",
        "answers": [],
        "selection": None,
        "text": f"%{name}: f32[4] = {op}({', '.join(reads)})",
        "reads": list(reads),
        "source": {"file": "model.py", "line": 7, "function": "forward", "code": f"{name} = …"},
        "module": "",
        "estimated_seconds": 1e-6,
        "expression": "",
        "instructions": [],
        **more,
    }


def report(calls, inputs=("x",), outputs=(), kernels=(), instructions=()):
    """A report of one graph of one segment."""
    counts = dict.fromkeys(("kernel", "library", "host", "copy", "device"), 0)
    for each in instructions:
        counts[each["kind"]] += 1
    program = {
        "instructions": list(instructions),
        "counts": counts,
        "memory": {"peak": 64, "sum": 128, "bound": 64, "padding": 0, "buffers": []},
        "text": "",
        "counted": None,
    }
    segment = {
        "name": "segment_0",
        "backend": "cpu",
        "ops": {},
        **dict.fromkeys(("inputs", "bytes_in", "outputs", "bytes_out", "kept", "bytes_kept"), 0),
        "symbolic": False,
        "estimated_seconds": None,
        "measured": None,
        "copies": [],
        "reformats": 0,
        "text": "",
        "program": program,
    }
    graph = {
        "kind": "inference",
        "inputs": [{"name": name, "label": name, "desc": "f32[4]"} for name in inputs],
        "outputs": list(outputs),
        "calls": list(calls),
        "segments": [segment],
        "counts": {**counts, "elsewhere": 0},
        "copies": [],
    }
    compilation = {
        "number": 0,
        "backends": ["cpu", "aten"],
        "milliseconds": 3.0,
        "notes": [],
        "cache": [],
        "stages": [
            {
                "name": "dce",
                "graph": "inference",
                "milliseconds": 3.0,
                "changed": True,
                "before": "graph(%x):\n  %a = sin(%x)\n  %b = cos(%x)\n  return %b",
                "after": "graph(%x):\n  %b = cos(%x)\n  return %b",
            }
        ],
        "graphs": [graph],
        "kernels": list(kernels),
    }
    return {
        "format": "dovetail.report/1",
        "dovetail": "0",
        "graph_breaks": [],
        "limits": None,
        "compilations": [compilation],
    }


def large(count):
    """A graph of ``count`` calls in layers, each reading one or two before it."""
    calls = [call("c0", ["x"])]
    for n in range(1, count):
        before = {max(0, n - 1 - n % 3), max(0, n - 7 * (n % 11))} - {n}
        calls.append(call(f"c{n}", [f"c{b}" for b in sorted(before)]))
    return report(calls, outputs=[f"c{count - 1}"])
