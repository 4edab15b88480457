"""A segment in other layouts: the same calls with other strides, and calls that change a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dovetail.ir.call import Arg, Attr, OpCall, Ref, tensors
from dovetail.ir.segment import Segment, ValueKey, is_write
from dovetail.ir.tensor import TensorDesc
from dovetail.schedule.images import is_channels_last, moved, moved_output, with_descs

KeepsStrides = Callable[[OpCall], bool]


class Reformatter:
    """Writes the calls anew: other strides, and changes of layout where they are needed."""

    def __init__(
        self,
        segment: Segment,
        roles: Mapping[str, str],
        moved_: set[str],
        keeps_strides: KeepsStrides,
    ) -> None:
        """``roles``: how each call deals with layouts. Results of ``moved_`` are channels-last."""
        self.segment, self.roles, self.moved = segment, roles, moved_
        self.keeps_strides = keeps_strides
        self.now: dict[ValueKey, TensorDesc] = {}  # of values that lie otherwise
        self.parts: dict[ValueKey, OpCall] = {}  # the calls that make parts of tensors, as traced
        self.copies: dict[tuple[ValueKey, bool], Ref] = {}
        self.names = {i.name for i in segment.inputs} | {c.name for c in segment.calls}
        self.calls: list[OpCall] = []

    def rewritten(self) -> Segment:
        """The segment with other strides inside; its inputs and outputs are what they were."""
        for call in self.segment.calls:
            self._call(call)
        outputs = tuple(self._traced(out) for out in self.segment.outputs)
        return replace(self.segment, calls=tuple(self.calls), outputs=outputs)

    def _call(self, call: OpCall) -> None:
        role, last = self.roles[call.name], call.name in self.moved
        if is_write(call):
            self.copies.clear()
        if role == "part" and last:
            self._part(call)
            return
        if role in ("library", "own") and last:
            made = self._map(call, self._last)
        elif role in ("free", "any"):
            made = with_descs(call, self.now)
        else:
            made = self._map(call, self._traced)
        if last:
            made = replace(made, output=moved_output(call.output))
            for (path, old), (_, new) in zip(
                tensors(call.output), tensors(made.output), strict=True
            ):
                if new != old:
                    self.now[call.name, path] = new
        if role == "free" and not self.keeps_strides(made):
            made = self._map(made, self._last if last else self._traced)
        self.calls.append(made)

    def _part(self, call: OpCall) -> None:
        """A part has the strides of the whole, by the step it is taken with."""
        (base,) = (r for r in call.refs() if (r.name, r.path) in self.now)
        key = base.name, base.path
        old, new = base.desc, self.now[key]
        assert isinstance(old, TensorDesc)
        for path, desc in tensors(call.output):
            ratios = zip(desc.strides, old.strides, new.strides, strict=True)
            strides = tuple(int(step) // int(was) * int(now) for step, was, now in ratios)  # type: ignore[arg-type]
            self.now[call.name, path] = replace(desc, strides=strides, layout=None)
            self.parts[call.name, path] = call
        output = [self.now[call.name, path] for path, _ in tensors(call.output)]
        made = with_descs(call, self.now)
        whole = tuple(output) if isinstance(call.output, tuple) else output[0]
        self.calls.append(replace(made, output=whole))

    def _map(self, call: OpCall, change: Callable[[Arg], Arg]) -> OpCall:
        kwargs = {name: change(arg) for name, arg in call.kwargs.items()}
        return replace(call, args=tuple(map(change, call.args)), kwargs=kwargs)

    def _last(self, arg: Arg) -> Arg:
        """An argument with its images channels-last."""
        if isinstance(arg, tuple):
            return tuple(map(self._last, arg))
        if not isinstance(arg, Ref) or not isinstance(arg.desc, TensorDesc) or arg.desc.rank != 4:
            return arg
        desc = self.now.get((arg.name, arg.path), arg.desc)
        if is_channels_last(desc):
            return replace(arg, desc=desc)
        return self._copy(replace(arg, desc=desc), moved(desc), "channels_last")

    def _traced(self, arg: Arg) -> Arg:
        """An argument as it was traced."""
        if isinstance(arg, tuple):
            return tuple(map(self._traced, arg))
        key = (arg.name, arg.path) if isinstance(arg, Ref) else None
        if key is None or key not in self.now:
            return arg
        if key in self.parts:
            return self._part_again(arg)
        return self._copy(replace(arg, desc=self.now[key]), arg.desc, "contiguous_format")

    def _copy(self, source: Ref, desc: TensorDesc, form: str) -> Ref:
        """A value in another layout, made once."""
        key = (source.name, source.path), form == "channels_last"
        if key not in self.copies:
            name = self._name("_".join([source.name, *map(str, source.path), form.split("_")[0]]))
            kwargs = {"memory_format": Attr("memory_format", form)}
            self.calls.append(OpCall(name, "aten.clone.default", (source,), kwargs, desc))
            self.copies[key] = Ref(name, desc)
        return self.copies[key]

    def _part_again(self, arg: Ref) -> Ref:
        """A part, as it was traced, of the tensor as it was traced."""
        key = (arg.name, arg.path), False
        if key not in self.copies:
            call = self.parts[arg.name, arg.path]
            made = replace(self._map(call, self._traced), name=self._name(f"{arg.name}_traced"))
            self.calls.append(made)
            for path, desc in tensors(call.output):
                self.copies[(call.name, path), False] = Ref(made.name, desc, path)
        return self.copies[key]

    def _name(self, name: str) -> str:
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name
