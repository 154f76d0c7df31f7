"""What libtpu writes beside the instructions of a module that it compiled: how many cycles it expects of each."""

import collections
import re

# An instruction that takes cycles: how often it runs, the cycles of one run, its opcode, its name and its result.
Cycles = collections.namedtuple('Cycles', 'runs cycles opcode instruction shape')

UNKNOWN = 10**15  # libtpu writes larger numbers where it does not know


def computations(text):
    """The lines of each computation by its name, and the name of the entry."""
    inside, entry, name = collections.defaultdict(list), None, None
    for line in text.splitlines():
        begins = re.match(r'(ENTRY )?%?([\w.\-]+) \(.*\{$', line)
        if begins:
            name = begins[2]
            entry = name if begins[1] else entry
        elif line.startswith('  '):
            inside[name].append(line)
    return inside, entry


def trips(condition):
    """How often a loop runs: the bound in its condition, since loops of JAX count from 0 by 1. 1 if it has none."""
    bounds = [int(bound) for line in condition for bound in re.findall(r's32\[\]\S* constant\((\d+)\)', line)]
    return max(bounds, default=1)


def cycles(text):
    """The instructions of a module that take cycles, each with the times that it runs."""
    inside, entry = computations(text)

    def visit(name, runs):
        for line in inside[name]:
            if loop := re.search(r' while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)', line):
                yield from visit(loop[2], runs * trips(inside[loop[1]]))
            elif branches := re.search(r' conditional\(.*branch_computations=\{(.*?)\}', line):
                called = branches[1].replace('%', '').split(', ')
                for branch in called:
                    yield from visit(branch, runs / len(called))
            elif called := re.search(r' call\(.*to_apply=%?([\w.\-]+)', line):
                yield from visit(called[1], runs)
            said = re.search(r'"estimated_cycles":"(\d+)"', line)
            if said and 0 < int(said[1]) < UNKNOWN:
                instruction, result = re.match(r'  (?:ROOT )?%?([\w.\-]+) = (.*)', line).groups()
                shape, opcode = re.match(r'(\(.*?\)|\S+) ([\w\-]+)\(', result).groups()
                yield Cycles(runs, int(said[1]), opcode, instruction, shape)

    return list(visit(entry, 1))
