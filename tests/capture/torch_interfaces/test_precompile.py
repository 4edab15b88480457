"""What PyTorch's precompile keeps."""

import torch

from dovetail.capture._torch.precompile import (
    bundling,
    declare_serializable,
    is_aot_compiling,
    is_kept,
    keep_artifact,
    names_given,
    output_code,
    output_code_compiler,
    precompile_artifact,
    skip_names,
)
from tests.marks import needs_precompile


def _restored(*args):
    return args


@needs_precompile
def test_precompile_artifacts():
    import copy

    from torch._dynamo.precompile_context import PrecompileContext

    artifact = precompile_artifact("key", b"bytes", _restored, len)
    assert artifact.__reduce__() == (_restored, ("key", b"bytes"))
    assert artifact.after_deserialization() is len
    assert copy.deepcopy(artifact) is artifact
    assert not is_kept("key")
    try:
        keep_artifact("key", b"bytes", _restored)
        assert is_kept("key")
    finally:
        PrecompileContext.clear()


@needs_precompile
def test_aot_autograd_keeps_output_code():
    import copy
    import pickle

    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    code = output_code(lambda inputs: inputs[::-1], lambda: (_restored, (b"bytes",)))
    assert code([1, 2]) == [2, 1]
    assert code.__dict__["_boxed_call"] is True
    assert copy.copy(code) is copy.deepcopy(code) is code
    assert pickle.loads(pickle.dumps(code)) == (b"bytes",)
    compiler = output_code_compiler(lambda gm, inputs: code)
    assert compiler(None, ()) is code
    assert callable(AOTAutogradCache.make_entry)
    assert not is_aot_compiling()
    with bundling():
        assert torch._functorch.config.force_non_lazy_backward_lowering
        assert torch._functorch.config.bypass_autograd_cache_key


@needs_precompile
def test_names_that_dynamo_numbers():
    from torch._dynamo.bytecode_transformation import unique_id

    given = names_given()
    assert unique_id("x") == f"x_{given}"
    skip_names(given + 10)
    assert unique_id("x") == f"x_{given + 10}"
    skip_names(0)
    assert unique_id("x") == f"x_{given + 11}"


@needs_precompile
def test_results_that_aot_compile_takes():
    from torch._dynamo.aot_compile_types import SerializableCallable

    class Result:
        pass

    assert not isinstance(Result(), SerializableCallable)
    declare_serializable(Result)
    assert isinstance(Result(), SerializableCallable)
