"""How far XLA's own figures are from estimates, by kinds of programs; compare.py --write puts it into the files of compilers.

Of each kind (`memory::ProgramKind`), the ratios between which XLA's bytes over those of the estimate are for most programs:
more than four of five, so that four of five are within for families that the ratios were not taken from. Where nearly all
estimates are exact, the interval is as wide as the error of programs of libraries, which were written after the rules.
"""

import collections
import gzip
import re

TAILS = 0.08  # of the programs, on either side
# How far below and above the estimate the interval reaches at least: so wide, 38 of the 46 programs of libraries are within
# for the GPU, and 39 for the CPU (unseen.py); with 5 % on either side it was 34 and 27. libtpu was not asked about them: as
# for the GPU, and wider above.
ERROR = dict(cpu=(0.20, 0.15), gpu=(0.20, 0.10), tpu=(0.20, 0.15))
FEWEST = 15  # programs of a kind that has ratios of its own
LEAST = 30  # programs, without which nothing is known of a compiler
KINDS = ['checkpointed', 'convolutions-in-loops', 'convolutions', 'loops', 'straight']

# A program: its family, its kind, and XLA's bytes over those of the estimate.
Residual = collections.namedtuple('Residual', 'family kind ratio')


def kind(module):
    text = gzip.open(module, 'rt').read()
    if ' opt-barrier(' in text:
        return 'checkpointed'
    loops = ' while(' in text
    if ' convolution(' in text:
        return 'convolutions-in-loops' if loops else 'convolutions'
    return 'loops' if loops else 'straight'


def quantile(values, part):
    values = sorted(values)
    at = part * (len(values) - 1)
    below = values[int(at)]
    return below + (values[min(int(at) + 1, len(values) - 1)] - below) * (at - int(at))


def bounds(residuals, backend):
    """Of each kind, the lowest and highest ratio without the tails."""
    of_kind = collections.defaultdict(list)
    for it in residuals:
        of_kind[it.kind].append(it.ratio)
    every = [it.ratio for it in residuals]
    chosen = {name: of_kind[name] if len(of_kind[name]) >= FEWEST else every for name in KINDS}
    return {name: ends(values, backend) for name, values in chosen.items()}


def without_tails(ratios):
    """The lowest and highest ratio without the tails."""
    return quantile(ratios, TAILS), quantile(ratios, 1 - TAILS)


def ends(ratios, backend):
    """The lowest and highest ratio without the tails, and no narrower than the error of other programs."""
    low, high = without_tails(ratios)
    below, above = ERROR[backend]
    return min(low, 1 - below), max(high, 1 + above)


def is_within(it, of_kind):
    low, high = of_kind[it.kind]
    return min(low, 1) <= it.ratio <= max(high, 1)


def coverage(residuals, backend):
    """The shares within their intervals: of all programs, and where the program's own family was left out."""
    fitted = bounds(residuals, backend)
    inside = sum(is_within(it, fitted) for it in residuals)
    left_out = 0
    for name in {it.family for it in residuals}:
        others = [it for it in residuals if it.family != name]
        if others:
            of_kind = bounds(others, backend)
            left_out += sum(is_within(it, of_kind) for it in residuals if it.family == name)
    return inside / len(residuals), left_out / len(residuals)


def write(path, residuals, backend):
    """Puts the ratios into the file of a compiler for a backend."""
    lines = ['[intervals]                      # scripts/truth/intervals.py: bytes of XLA over those of the estimate']
    lines += [f'programs = {len(residuals)}']
    lines += [f'{name} = [{low:.3f}, {high:.3f}]' for name, (low, high) in bounds(residuals, backend).items()]
    rest = re.sub(r'\n\[intervals\].*?(?=\n\[|\Z)', '', path.read_text(), flags=re.S).rstrip('\n')
    path.write_text(rest + '\n\n' + '\n'.join(lines) + '\n')
