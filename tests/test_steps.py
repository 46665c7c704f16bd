"""No step waits for its device: what the code of engine and spec may not say, read from its sources.

A wait that hides behind a call is beyond this reading; on a GPU torch.cuda.set_sync_debug_mode finds those.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.house import HOME, Rule, Source, complaints, imported

HOST_SYNCS = {
    "item",
    "tolist",
    "numpy",
    "cpu",
    "synchronize",
    "equal",
    "allclose",
    "is_nonzero",
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "unique_consecutive",
    "bincount",
}
"""Methods that bring values to the host, or whose result has a size that only the device knows."""
HOST_FACTS = {
    "data_ptr",
    "shape",
    "device",
    "dtype",
    "ndim",
    "numel",
    "size",
    "dim",
    "stride",
    "is_cuda",
    "is_contiguous",
}
"""What a tensor says of itself without asking its device."""
ON_THE_HOST = {"torch.from_numpy", "torch.device", "torch.get_num_threads"}
"""Calls of torch whose result asks no device."""
HOST_TYPES = {"Ints", "Longs", "Bools", "StepOutput"}
"""Annotations of arguments that lie on the host."""
MAY_SYNC = {
    "engine/state/pinned.py",
    "engine/step/skip_finished.py",
    "engine/attention/cpu.py",
    "engine/grammars/choice.py",
    "engine/grammars/masked.py",
    "engine/attention/flashinfer_schedule.py",
    "spec/drafters/confidence.py",
}
"""Where results come to the host, where masks leave it, the backend whose device is the host and three that look only
there, and a guard on pinned memory that waits only for a copy of the step before last."""
AT_LOAD = {
    "engine/build.py",
    "engine/model/config_numbers.py",
    "engine/cuda.py",
    "engine/device.py",
    "engine/kernels/folder.py",
    "engine/kernels/product_choice.py",
    "engine/memory.py",
    "engine/model/matrix.py",
    "engine/model/packing.py",
    "engine/model/parts.py",
    "engine/model/config.py",
    "engine/model/weights.py",
    "engine/attention/flashinfer_modules.py",
    "engine/attention/flashinfer_options.py",
    "engine/attention/flashinfer_prebuild.py",
    "engine/attention/reference.py",
    "engine/lanes/cpu.py",
    "engine/lanes/frames.py",
    "engine/sglang/build.py",
    "engine/sglang/hooks.py",
    "engine/sglang/place.py",
    "engine/sglang/ranks.py",
    "engine/sglang/shapes.py",
    "engine/sglang/start.py",
    "engine/sglang/taps.py",
    "spec/build.py",
    "spec/checkpoints/formats.py",
    "spec/heads/config.py",
    "spec/checkpoints/loader.py",
    "spec/checkpoints/registry.py",
    "spec/heads/vocabulary.py",
}
"""Never inside a step of a device: loading, the oracle, and the host's side of lanes."""


def in_steps(source: Source) -> bool:
    """Whether a file's code runs within the steps of a device."""
    return source.room in ("engine", "spec") and source.place not in MAY_SYNC | AT_LOAD


def device_syncs(source: Source) -> Iterator[str]:
    """Calls that wait for a device, in code that runs within its steps."""
    if not in_steps(source):
        return
    on_the_host = set(_host_calls(source.tree))
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)) or node in on_the_host:
            continue
        if node.func.attr in HOST_SYNCS and ast.unparse(node.func.value) not in ("np", "numpy"):
            yield f"{source.place}:{node.lineno} calls .{node.func.attr}(), which waits for the device"
        if node.func.attr == "where" and len(node.args) == 1 and ast.unparse(node.func.value) == "torch":
            yield f"{source.place}:{node.lineno} calls torch.where with one argument, which waits for the device"
        if node.func.attr == "to" and any(
            ast.unparse(value) in ("'cpu'", "torch.device('cpu')") for value in _given(node)
        ):
            yield f"{source.place}:{node.lineno} copies to the host, which waits for the device"


def tensor_syncs(source: Source) -> Iterator[str]:
    """Tensors, known by their annotation or by the torch call that made them, that are asked for a value or used as a
    mask whose count the host would have to learn."""
    if not in_steps(source):
        return
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef):
            tensors = _tensors_of(function)
            for node in ast.walk(function):
                if any(_is_value_of(part, tensors) for part in _asked(node)):
                    yield f"{source.place}:{node.lineno} asks a tensor for its value, which waits for the device"
                if (
                    isinstance(node, ast.Subscript)
                    and _is_value_of(node.value, tensors)
                    and _is_mask(node.slice, tensors)
                ):
                    yield f"{source.place}:{node.lineno} indexes by a mask, which waits for the device"


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _host_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of methods of arguments, or of their parts, that lie on the host by their annotation."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            set_anew = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and _is_set(node)}
            own = {name for name, kind in _arguments(function).items() if kind in HOST_TYPES} - set_anew
            calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
            yield from (node for node in calls if isinstance(node.func, ast.Attribute) and _root(node.func) in own)


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _root(node: ast.expr) -> str | None:
    """The name whose attribute or part an expression is."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _arguments(function: ast.FunctionDef) -> dict[str, str]:
    """Names of its arguments with their annotations."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation}


def _tensors_of(function: ast.FunctionDef) -> dict[str, bool]:
    """Names of a function that hold tensors, each with whether it is a mask."""
    tensors = {name: False for name, kind in _arguments(function).items() if kind.startswith("Tensor")}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(name)]) if _is_value_of(node.value, tensors):
                tensors[name] = _is_mask(node.value, tensors)
    return tensors


def _is_value_of(node: ast.expr, tensors: dict[str, bool]) -> bool:
    """Whether an expression is computed from tensors, rather than from what the host knows of them."""
    match node:
        case ast.Name():
            return node.id in tensors
        case ast.Attribute():
            return node.attr not in HOST_FACTS and _is_value_of(node.value, tensors)
        case ast.Call():
            name = ast.unparse(node.func)
            if name in ("int", "float", "bool", "len", "isinstance"):
                return False
            return _is_value_of(node.func, tensors) or (name.startswith("torch.") and name not in ON_THE_HOST)
        case ast.Subscript():
            return _is_value_of(node.value, tensors)
        case ast.BinOp():
            return _is_value_of(node.left, tensors) or _is_value_of(node.right, tensors)
        case ast.UnaryOp():
            return not isinstance(node.op, ast.Not) and _is_value_of(node.operand, tensors)
        case ast.Compare():
            apart = any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
            return not apart and any(_is_value_of(part, tensors) for part in (node.left, *node.comparators))
    return False


def _is_mask(node: ast.expr, tensors: dict[str, bool]) -> bool:
    match node:
        case ast.Name():
            return tensors.get(node.id, False)
        case ast.Compare():
            return _is_value_of(node, tensors)
        case ast.UnaryOp(op=ast.Invert()):
            return _is_mask(node.operand, tensors)
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            return _is_mask(node.left, tensors) and _is_mask(node.right, tensors)
        case ast.Tuple():
            return any(_is_mask(part, tensors) for part in node.elts)
    return False


def _asked(node: ast.AST) -> list[ast.expr]:
    """Expressions whose truth or number the host needs at this node."""
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            return [node.test]
        case ast.BoolOp():
            return node.values
        case ast.UnaryOp(op=ast.Not()):
            return [node.operand]
        case ast.Call(func=ast.Name(id="int" | "float" | "bool" | "range")):
            return node.args
    return []


def loud_steps(source: Source) -> Iterator[str]:
    """Logging, printing and reading the environment, in code that runs within steps."""
    if not in_steps(source):
        return
    yield from (f"{source.place}:{line} imports logging" for line, name in imported(source.tree) if name == "logging")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "open", "os.getenv", "warnings.warn"):
            yield f"{source.place}:{node.lineno} calls {ast.unparse(node.func)} within a step"
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ":
            yield f"{source.place}:{node.lineno} reads the environment within a step"


@pytest.mark.parametrize("rule", [device_syncs, tensor_syncs, loud_steps])
def test_no_step_waits(rule: Rule) -> None:
    assert not complaints(rule), complaints(rule)


@pytest.mark.parametrize(
    ("rule", "place", "text"),
    [
        (device_syncs, "engine/step/passes.py", "n = lengths.max().item()"),
        (device_syncs, "spec/trees/accept.py", "rows = mask.nonzero()"),
        (device_syncs, "spec/trees/tree.py", "a = torch.where(mask)"),
        (device_syncs, "engine/model/decoder.py", "torch.cuda.synchronize()"),
        (device_syncs, "spec/round/verify.py", "a = b.to(device='cpu')"),
        (device_syncs, "spec/round/verify.py", "same = torch.equal(a, b)"),
        (device_syncs, "spec/trees/tree.py", "def f(a: Tensor):\n    return a[0].tolist()"),
        (device_syncs, "spec/trees/tree.py", "def f(a: Ints):\n    a = torch.zeros(2)\n    return a.tolist()"),
        (tensor_syncs, "spec/trees/tree.py", "def f(a: Tensor):\n    return int(a.max())"),
        (tensor_syncs, "spec/trees/tree.py", "def f(a: Tensor | None):\n    if a is not None and (a > 0).any(): ..."),
        (tensor_syncs, "spec/trees/tree.py", "def f(a: Tensor):\n    return a[a > 0]"),
        (tensor_syncs, "spec/trees/tree.py", "def f(a: Tensor):\n    mask = a.abs() > 0\n    return a[:, ~mask]"),
        (
            tensor_syncs,
            "engine/step/passes.py",
            "def f():\n    a = torch.zeros(2)\n    b = a.sum()\n    while b < 1: ...",
        ),
        (loud_steps, "engine/step/passes.py", "import logging"),
        (loud_steps, "spec/round/round.py", "print(plan)"),
        (loud_steps, "spec/round/round.py", "x = os.environ['A']"),
    ],
)
def test_each_rule_catches_a_violation(rule: Rule, place: str, text: str) -> None:
    assert list(rule(Source(place, text)))


@pytest.mark.parametrize(
    "text",
    [
        "def f(a: Tensor | None):\n    if a is None or a.shape[0] == 1: ...",
        "def f(a: Tensor, counts: Ints):\n    return int(counts.max()) + a.numel()",
        "def f(a: Tensor):\n    for level in range(a.shape[1]): ...",
        "def f(a: Tensor, kept: Tensor):\n    return a[kept], a[:, None], torch.where(a > 0, a, 0)",
    ],
)
def test_what_the_host_knows_is_no_wait(text: str) -> None:
    assert not list(tensor_syncs(Source("spec/trees/tree.py", text)))


@pytest.mark.parametrize(
    "text",
    ["def f(a: Ints):\n    return a[0, :2].tolist()", "def f(out: StepOutput):\n    return out.tokens[1].tolist()"],
)
def test_arrays_of_the_host_may_be_read(text: str) -> None:
    assert not list(device_syncs(Source("engine/grammars/filling.py", text)))


def test_the_exceptions_are_files_that_exist() -> None:
    assert all((HOME / place).is_file() for place in MAY_SYNC | AT_LOAD)
    assert len(MAY_SYNC) == 7
