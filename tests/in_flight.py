"""Which batches of factorisations of a compiled program may be in flight at once, read off its HLO.

On a CPU XLA runs instructions that do not depend on each other side by side, and each batch of LAPACK's factorisations
waits for threads of the same pool: on two cores, two of them at once may wait for each other forever. Those that
depend on each other, at however many removes, never meet.
"""

import re

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*)$")
_BATCHED = re.compile(r"^\(?\w+\[(\d+(?:,\d+)*),\d+,\d+\].*custom_call_target=\"lapack_\w+\"")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


def computations(hlo: str) -> dict[str, dict[str, str]]:
    """The instructions of every computation by their names."""
    found: dict[str, dict[str, str]] = {}
    current = ""
    for line in hlo.splitlines():
        if head := _COMPUTATION.match(line):
            current = head[1]
            found[current] = {}
        elif current and (match := _INSTRUCTION.match(line)):
            found[current][match[1]] = match[2]
    return found


def is_batch_itself(text: str) -> bool:
    """Whether an instruction is a batch of factorisations of more than one matrix."""
    match = _BATCHED.match(text)
    return match is not None and any(int(number) > 1 for number in match[1].split(","))


def batches(hlo: str) -> list[str]:
    """The instructions of a program, wherever they are, that are batches of factorisations."""
    return [text for found in computations(hlo).values() for text in found.values() if is_batch_itself(text)]


def pairs_in_flight(hlo: str) -> list[tuple[str, str]]:
    """The pairs of instructions that do not depend on each other and both have a batch of factorisations within."""
    found = computations(hlo)
    has_batch: dict[str, bool] = {}

    def within(computation: str) -> bool:
        if computation not in has_batch:
            has_batch[computation] = False
            has_batch[computation] = any(is_batch(text) for text in found.get(computation, {}).values())
        return has_batch[computation]

    def is_batch(text: str) -> bool:
        if is_batch_itself(text):
            return True
        called = _CALLED.findall(text)
        for branches in _BRANCHES.findall(text):
            called += [name.strip().lstrip("%") for name in branches.split(",")]
        return any(within(name) for name in called)

    pairs = []
    for instructions in found.values():
        batches = [name for name, text in instructions.items() if is_batch(text)]
        if len(batches) < 2:
            continue
        depends: dict[str, set[str]] = {}
        for name, text in instructions.items():  # operands come first
            operands = [other for other in re.findall(r"%([\w.\-]+)", text) if other in depends]
            depends[name] = set(operands).union(*(depends[other] for other in operands))
        for place, first in enumerate(batches):
            pairs += [(first, second) for second in batches[place + 1 :] if first not in depends[second]]
    return pairs
