#!/usr/bin/env python3
"""Writes docs/compare.md: what memplan makes of every program of the corpus, beside XLA's own compilers.

usage: scripts/compare_with_xla.py [MEMPLAN]      from the project's root; needs the corpus ($MEMPLAN_SHARED or ../shared)

Two tables. "Compile": from the module that JAX hands over, `memplan compile --target T` and the same with
`--objective memory`, total - constants against XLA's total; on the TPU both count padded bytes in HBM. Times are those of
memplan's cost model, of our program and of XLA's own module. "Plan": XLA's own scheduled modules, `memplan plan`, temp
against XLA's preallocated temp, for the backends that print their assignment.
"""
import json, math, os, re, subprocess, sys, tempfile, time

SHARED = os.environ.get('MEMPLAN_SHARED', '../shared')
CORPUS = f'{SHARED}/corpus'
MEMPLAN = sys.argv[1] if len(sys.argv) > 1 else 'target/release/memplan'
BACKENDS = [('cpu', 'cpu'), ('gpu', 'gpu-h100'), ('tpu', 'tpu-v5e')]

# Why a program does not end below XLA. Kept by hand, checked to be about programs that are losers.
REASONS = json.load(open('docs/compare_reasons.json'))


def plan(verb, module, target, *extra):
    with tempfile.NamedTemporaryFile(suffix='.json') as out:
        start = time.time()
        run = subprocess.run([MEMPLAN, verb, module, '--target', target, '--format', 'json', '-o', out.name, *extra],
                             capture_output=True, text=True)
        if run.returncode:
            return None, run.stderr.strip().splitlines()[0]
        plan = json.load(open(out.name))
        return plan['totals'] | dict(cost=plan['cost']['seconds']), time.time() - start


def xla_total(path):
    figures = json.load(open(path))
    part = lambda key: figures[f'{key}_size_in_bytes']
    return part('argument') + part('output') - part('alias') + part('temp')


def xla_temp(path):
    return sum(map(int, re.findall(r'^allocation \d+: size (\d+), .*preallocated-temp', open(path).read(), re.M)))


def geomean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main():
    programs = sorted(name for name in os.listdir(CORPUS) if os.path.isdir(f'{CORPUS}/{name}'))
    lines = ['# memplan beside XLA', '',
             'Made by `scripts/compare_with_xla.py` from release builds; sizes in bytes, lower is better.', '']
    for backend, target in BACKENDS:
        lines += [f'## Compile for {target}: total - constants', '',
                  f'| program | XLA {backend} | memplan | of which padding | ratio | time | --objective memory | ratio | time | seconds | XLA seconds | note |',
                  '|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|']
        ratios, times, small, slow = [], [], [], []
        for name in programs:
            module = f'{CORPUS}/{name}/before.hlo.txt'
            totals, seconds = plan('compile', module, target)
            least, error = plan('compile', module, target, '--objective', 'memory')
            if totals is None or least is None:
                lines.append(f'| {name} | | failed: {seconds if totals is None else error} | | | | | | | | | |')
                continue
            xla, _ = plan('plan', f'{CORPUS}/{name}/{backend}.hlo.txt', target)
            theirs = xla_total(f'{CORPUS}/{name}/{backend}.json')
            ours, fewest = (of['total'] - of['constants'] for of in (totals, least))
            time_ratio, time_of_fewest = (of['cost'] / max(xla['cost'], 1e-9) for of in (totals, least))
            ratios.append(ours / theirs)
            small.append(fewest / theirs)
            times.append(time_ratio)
            slow.append(time_of_fewest)
            compile_s = json.load(open(f'{CORPUS}/{name}/{backend}.json'))['compile_s']
            note = REASONS.get(f'{name}/{backend}', '') if ours > theirs else ''
            lines.append(f'| {name} | {theirs:,} | {ours:,} | {totals["padding"]:,} | {ours / theirs:.3f} | {time_ratio:.2f} '
                         f'| {fewest:,} | {fewest / theirs:.3f} | {time_of_fewest:.2f} | {seconds:.2f} | {compile_s} | {note} |')
        at_most = sum(ratio <= 1 for ratio in ratios)
        no_slower = sum(ratio <= 1.02 for ratio in times)
        lines += ['', f'{at_most} of {len(programs)} at or below XLA, geometric mean {geomean(ratios):.3f}; no slower than XLA\'s own '
                  f'module (2 %) {no_slower}, geometric mean of time {geomean(times):.3f}. With --objective memory '
                  f'{sum(ratio <= 1 for ratio in small)}, {geomean(small):.3f}, and {geomean(slow):.3f} of the time.', '']
        if not os.path.exists(f'{CORPUS}/{programs[0]}/{backend}.assignment.txt'):
            continue
        lines += [f'## Plan XLA\'s own schedule for {target}: temp', '',
                  '| program | XLA | memplan | bound | ratio |', '|---|---:|---:|---:|---:|']
        ratios = []
        for name in programs:
            totals, error = plan('plan', f'{CORPUS}/{name}/{backend}.hlo.txt', target)
            theirs = xla_temp(f'{CORPUS}/{name}/{backend}.assignment.txt')
            ours = totals['temp']
            ratio = ours / theirs if theirs else 1.0
            ratios.append(max(ratio, 1e-9))
            lines.append(f'| {name} | {theirs:,} | {ours:,} | {totals["temp_lower_bound"]:,} | {ratio:.4f} |')
        at_most = sum(ratio <= 1 for ratio in ratios)
        lines += ['', f'{at_most} of {len(programs)} at or below XLA, geometric mean {geomean(ratios):.4f}.', '']
    open('docs/compare.md', 'w').write('\n'.join(lines))
    print('\n'.join(line for line in lines if 'geometric' in line or 'failed' in line))


main()
