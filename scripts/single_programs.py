#!/usr/bin/env python3
"""Programs of one operation or one block each (block_programs.py), and what XLA needs for them.

usage: single_programs.py BACKEND FOLDER TRUTH [--ask SECONDS] [NAME...]

Lowers each program as JAX hands it to the compiler of BACKEND (cpu, gpu, tpu), to FOLDER/NAME.hlo.txt. With --ask, XLA
compiles those of which TRUTH knows nothing: what it makes of them goes to FOLDER/NAME.xla.txt, what they need and the
seconds that it took are a row of TRUTH. What is known is never asked again, and no program is begun after SECONDS (libtpu
lets one process in at a time). A program that XLA refuses has a row without a total. NAME is a part of names or kinds of programs.
"""
import os
import sys
import time

import xla_compilers

BACKEND = sys.argv[1] if __name__ == '__main__' else 'cpu'
xla_compilers.prepare(BACKEND)

import jax
import jax.numpy as jnp
from jax import lax
from jax import nn

import block_programs  # Lists them.
from listed_programs import PROGRAMS, add

FIELDS = ['program', 'backend', 'total', 'seconds']


# Elementwise: one array in, one out.

WIDE, ODD, LONG = 'f32[1024,2048]', 'f32[1000,300]', 'bf16[16,1024,3072]'
add('elementwise', 'abs', jnp.abs, 's32[4096,4096]', 'f32[1000,300]')
add('elementwise', 'add', jnp.add, f'{WIDE} {WIDE}; bf16[32,56,56,3] bf16[32,56,56,3]; f32[5000001] f32[5000001]')
add('elementwise', 'atan2', jnp.arctan2, f'{WIDE} {WIDE}', f'{WIDE} {WIDE}')
add('elementwise', 'bitcast_convert', lambda x: lax.bitcast_convert_type(x, jnp.int32), WIDE)
add('elementwise', 'bitcast_convert_narrower', lambda x: lax.bitcast_convert_type(x, jnp.int16), WIDE)
add('elementwise', 'cbrt', jnp.cbrt, 'f16[2048,2048]')
add('elementwise', 'ceil_floor_round', lambda x: jnp.ceil(x) + jnp.floor(x) + jnp.round(x), 'bf16[1024,2048]')
add('elementwise', 'clamp', lambda x: lax.clamp(jnp.float32(-1), x, jnp.float32(1)), WIDE, ODD)
add('elementwise', 'compare', lambda x, y: x > y, f'{WIDE} {WIDE}; bf16[100,200,300] bf16[100,200,300]')
add('elementwise', 'complex', lax.complex, f'{WIDE} {WIDE}')
add('elementwise', 'real_imag', lambda z: (z.real, z.imag), 'c64[1024,2048]')
add('elementwise', 'convert_to_f32', lambda x: x.astype(jnp.float32), 'bf16[4096,4096]; s8[1024,4096]; f8[1024,4096]')
add('elementwise', 'convert_to_bf16', lambda x: x.astype(jnp.bfloat16), 'f32[4096,4096]; s32[1000,300]')
add('elementwise', 'count_bits', lambda x: lax.population_count(x) + lax.clz(x), 'u32[1024,2048]')
add('elementwise', 'digamma', jax.scipy.special.digamma, WIDE)
add('elementwise', 'divide', jnp.divide, f'bf16[2048,4096] bf16[2048,4096]', f'{WIDE} {WIDE}')
add('elementwise', 'erf', jax.scipy.special.erf, 'bf16[2048,4096]', WIDE)
add('elementwise', 'erfinv', jax.scipy.special.erfinv, WIDE)
add('elementwise', 'exp', jnp.exp, f'{LONG}; f32[5000,333,3]', WIDE)
add('elementwise', 'exp_complex', jnp.exp, 'c64[1024,2048]', 'c64[1000,300]')
add('elementwise', 'floor_divide', jnp.floor_divide, 's32[1024,2048] s32[1024,2048]')
add('elementwise', 'is_finite', jnp.isfinite, 'f16[4096,4096]')
add('elementwise', 'lgamma', lax.lgamma, WIDE)
add('elementwise', 'log1p_expm1', lambda x: jnp.log1p(jnp.expm1(x)), 'f16[1024,2048]')
add('elementwise', 'logaddexp', jnp.logaddexp, f'{WIDE} {WIDE}', f'{WIDE} {WIDE}')
add('elementwise', 'maximum', jnp.maximum, f'{WIDE} {WIDE}', 'bf16[1024,2048] bf16[1024,2048]')
add('elementwise', 'mod', jnp.mod, f'{WIDE} {WIDE}')
add('elementwise', 'nextafter', jnp.nextafter, f'{WIDE} {WIDE}')
add('elementwise', 'power', jnp.power, f'bf16[1024,2048] bf16[1024,2048]', f'{WIDE} {WIDE}')
add('elementwise', 'reduce_precision', lambda x: lax.reduce_precision(x, 5, 10), WIDE)
add('elementwise', 'rsqrt', lax.rsqrt, 'f16[4096,4096]', WIDE)
add('elementwise', 'select', jnp.where, f'pred[1024,2048] {WIDE} {WIDE}', f'pred[1024,2048] {WIDE} {WIDE}')
add('elementwise', 'shifts', lambda x: (x << 3) ^ (x >> 5) | ~x, 's32[2048,2048]; u8[4096,4096]')
add('elementwise', 'sign', jnp.sign, 'bf16[1024,2048]')
add('elementwise', 'sin_cos', lambda x: jnp.sin(x) * jnp.cos(x), WIDE, 'bf16[1024,2048]')
add('elementwise', 'sqrt_complex', jnp.sqrt, 'c64[1024,2048]')
add('elementwise', 'tanh', jnp.tanh, 'bf16[4096,8192]', 'f16[1024,2048]')

# Activations and normalizations.

add('activation', 'gelu', nn.gelu, 'bf16[16,512,3072]', 'f32[16,512,1024]; bf16[16,512,1024]')
add('activation', 'gelu_exact', lambda x: nn.gelu(x, approximate=False), 'f16[16,512,1024]', 'f32[16,512,1024]')
add('activation', 'glu', nn.glu, 'bf16[16,512,3072]', 'f32[16,512,1024]')
add('activation', 'log_softmax', nn.log_softmax, 'f32[512,32000]', 'f32[512,32000]; bf16[512,8000]')
add('activation', 'logsumexp', lambda x: nn.logsumexp(x, -1), 'bf16[512,32000]', 'f32[1024,8192]')
add('activation', 'relu', nn.relu, 'bf16[64,56,56,64]', 'f32[32,56,56,64]')
add('activation', 'silu', nn.silu, 'f16[4096,4096]', 'bf16[4096,4096]')
add('activation', 'softmax', nn.softmax, 'f32[16,12,256,256]; bf16[1000,1000]', 'f32[16,12,256,256]; bf16[16,12,256,256]')
add('activation', 'softmax_axis0', lambda x: nn.softmax(x, 0), 'f32[2000,1500]', 'f32[2000,1500]')
add('activation', 'softplus', nn.softplus, WIDE, 'bf16[1024,2048]')
add('activation', 'standardize', nn.standardize, 'f32[8192,1024]; bf16[8192,1024]', 'f32[8192,1024]; bf16[4096,768]')
rms_norm = lambda x, g: x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-5).astype(x.dtype) * g
add('activation', 'rms_norm', rms_norm, 'bf16[8192,2048] bf16[2048]', 'f32[4096,1024] f32[1024]; bf16[4096,1024] bf16[1024]')
batch_norm = lambda x: (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)
add('activation', 'batch_norm', batch_norm, 'f32[32,56,56,64]; bf16[32,28,28,128]', 'f32[32,56,56,64]')

# Reductions.

add('reduction', 'sum_all', jnp.sum, 'f32[4096,4096]; bf16[10000,1000]', WIDE)
add('reduction', 'sum_rows', lambda x: x.sum(1), 'f32[4096,8192]; bf16[5000,777]')
add('reduction', 'sum_columns', lambda x: x.sum(0), 'f32[8192,1024]; bf16[100000,64]; f16[4096,1024]')
add('reduction', 'sum_middle', lambda x: x.sum(1), 'f32[64,500,300]')
add('reduction', 'sum_cells', lambda x: x.sum((0, 1, 2)), 'f32[32,112,112,32]')
add('reduction', 'sum_s8', lambda x: x.sum(0, dtype=jnp.int32), 's8[4096,4096]')
add('reduction', 'max', lambda x: x.max(1), 'f32[2048,2048]', 'f32[2048,2048]; bf16[2048,1024]')
add('reduction', 'prod', lambda x: x.prod(1), 'f32[2048,1024]', 'f32[512,512]')
add('reduction', 'all', lambda x: (x > 0).all(0), 'f32[2048,2048]')
add('reduction', 'argmax', lambda x: jnp.argmax(x, 1), 'f32[4096,4096]; bf16[512,32000]')
add('reduction', 'argmin_columns', lambda x: jnp.argmin(x, 0), 'f32[4096,1000]')
add('reduction', 'var', lambda x: x.var(), 'f32[1024,2048]; bf16[2048,2048]', 'f32[1024,2048]')
add('reduction', 'var_rows', lambda x: x.var(1), 'f32[4096,2048]', 'f32[4096,1024]; bf16[4096,1024]')
add('reduction', 'std_columns', lambda x: x.std(0), 'f32[4096,2048]', 'f32[2048,1024]')
add('reduction', 'norm', lambda x: jnp.linalg.norm(x, axis=1), 'f32[4096,2048]', 'f32[2048,2048]')
add('reduction', 'median', lambda x: jnp.median(x, 1), 'f32[1024,1000]')
add('reduction', 'nanmean', lambda x: jnp.nanmean(x, 0), 'f32[2048,2048]')
add('reduction', 'bincount', lambda x: jnp.bincount(x, length=1000), 's32[1000000]')

# Cumulative operations.

add('cumulative', 'cumsum_0', lambda x: jnp.cumsum(x, 0), 'f32[2048,768]; bf16[4096,512]; f32[100,20000]', 'f32[1024,1024]')
add('cumulative', 'cumsum_1', lambda x: jnp.cumsum(x, 1), 'f32[768,2048]; bf16[512,4096]; s32[1000,1000]', 'f32[1024,1024]')
add('cumulative', 'cumsum_flat', jnp.cumsum, 'f32[1000000]')
add('cumulative', 'cumsum_middle', lambda x: jnp.cumsum(x, 1), 'f32[16,1024,256]')
add('cumulative', 'cumprod', lambda x: jnp.cumprod(x, 1), 'f32[512,2048]', 'f32[512,512]')
add('cumulative', 'cummax', lambda x: lax.cummax(x, 1), 'f32[512,2048]', 'f32[512,512]')
add('cumulative', 'cumlogsumexp', lambda x: lax.cumlogsumexp(x, 1), 'f32[512,2048]')
scan_linear = lambda a, b: lax.associative_scan(lambda l, r: (l[0] * r[0], l[1] * r[0] + r[1]), (a, b), axis=1)[1]
add('cumulative', 'associative_scan', scan_linear, 'f32[16,1024,256] f32[16,1024,256]', 'f32[16,256,256] f32[16,256,256]')

# Windows.

window = lambda x, f, init, size, stride: lax.reduce_window(x, x.dtype.type(init), f, size, stride, 'SAME')
max_pool = lambda x: window(x, lax.max, -jnp.inf, (1, 3, 3, 1), (1, 2, 2, 1))
max_pool2 = lambda x: window(x, lax.max, -jnp.inf, (1, 2, 2, 1), (1, 2, 2, 1))
avg_pool = lambda x: window(x, lax.add, 0., (1, 3, 3, 1), (1, 2, 2, 1))
add('window', 'max_pool', max_pool, 'f32[32,112,112,64]; bf16[32,56,56,64]', 'f32[32,56,56,64]; bf16[32,56,56,64]')
add('window', 'max_pool2', max_pool2, 'f32[32,28,28,256]', 'f32[16,56,56,128]')
add('window', 'max_pool_nchw', lambda x: window(x, lax.max, -jnp.inf, (1, 1, 2, 2), (1, 1, 2, 2)), 'f32[16,64,56,56]', 'f32[16,64,56,56]')
add('window', 'avg_pool', avg_pool, 'f32[32,56,56,64]; bf16[32,56,56,64]', 'f32[32,56,56,64]; bf16[32,56,56,64]')
add('window', 'pool_1d', lambda x: window(x, lax.max, -jnp.inf, (1, 4, 1), (1, 4, 1)), 'f32[64,4096,32]', 'f32[64,2048,32]')
add('window', 'moving_sum', lambda x: window(x, lax.add, 0., (1, 25), (1, 1)), 'f32[1000,3000]', 'f32[1000,1000]')
add('window', 'patches', lambda x: lax.conv_general_dilated_patches(x, (3, 3), (1, 1), 'SAME'), 'f32[8,16,56,56]', 'f32[8,16,56,56]')

# Convolutions.

convolve = lambda strides, padding, dims, **k: (lambda x, w: lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=dims, **k))
NHWC, NCHW, NWC = ('NHWC', 'HWIO', 'NHWC'), ('NCHW', 'OIHW', 'NCHW'), ('NWC', 'WIO', 'NWC')
add('convolution', 'conv3x3', convolve((1, 1), 'SAME', NHWC), 'f32[32,56,56,64] f32[3,3,64,64]; bf16[32,28,28,128] bf16[3,3,128,128]; f16[16,28,28,128] f16[3,3,128,128]', 'f32[32,28,28,64] f32[3,3,64,64]; bf16[32,28,28,128] bf16[3,3,128,128]')
add('convolution', 'conv3x3_nchw', convolve((1, 1), 'SAME', NCHW), 'f32[16,64,56,56] f32[64,64,3,3]', 'f32[16,64,56,56] f32[64,64,3,3]')
add('convolution', 'conv_stem', convolve((2, 2), 'SAME', NHWC), 'f32[32,224,224,3] f32[7,7,3,64]', 'bf16[16,224,224,3] bf16[7,7,3,64]')
add('convolution', 'conv1x1', convolve((1, 1), 'SAME', NHWC), 'bf16[32,28,28,256] bf16[1,1,256,512]', 'f32[16,28,28,256] f32[1,1,256,512]')
add('convolution', 'conv_depthwise', convolve((1, 1), 'SAME', NHWC, feature_group_count=128), 'f32[16,56,56,128] f32[3,3,1,128]', 'f32[16,28,28,128] f32[3,3,1,128]')
add('convolution', 'conv_grouped', convolve((1, 1), 'SAME', NHWC, feature_group_count=8), 'f32[16,28,28,128] f32[3,3,16,128]', 'f32[16,28,28,128] f32[3,3,16,128]')
add('convolution', 'conv_dilated', convolve((1, 1), 'SAME', NHWC, rhs_dilation=(2, 2)), 'f32[16,56,56,64] f32[3,3,64,64]')
add('convolution', 'conv_1d', convolve((1,), 'SAME', NWC), 'f32[32,4096,64] f32[5,64,64]; bf16[16,8000,128] bf16[9,128,128]', 'f32[32,2048,64] f32[5,64,64]')
add('convolution', 'conv_1d_depthwise', convolve((1,), 'SAME', NWC, feature_group_count=512), 'bf16[16,2048,512] bf16[4,1,512]', 'f32[8,2048,512] f32[4,1,512]')
add('convolution', 'conv_3d', convolve((1, 1, 1), 'SAME', ('NDHWC', 'DHWIO', 'NDHWC')), 'f32[4,16,56,56,32] f32[3,3,3,32,32]', 'f32[4,16,28,28,32] f32[3,3,3,32,32]')
transposed = lambda x, w: lax.conv_transpose(x, w, (2, 2), 'SAME')
add('convolution', 'conv_transpose', transposed, 'f32[16,28,28,128] f32[4,4,128,64]', 'bf16[16,28,28,128] bf16[4,4,128,64]')
add('convolution', 'convolve', lambda x, w: jnp.convolve(x, w, 'same'), 'f32[1000000] f32[101]', 'f32[100000] f32[51]')
add('convolution', 'convolve_2d', lambda x, w: jax.scipy.signal.convolve2d(x, w, 'same'), 'f32[1024,1024] f32[7,7]')

# Products.

add('product', 'matmul', jnp.matmul, 'f32[2048,2048] f32[2048,2048]; bf16[4096,4096] bf16[4096,4096]; f16[1024,2048] f16[2048,1024]; s8[2048,2048] s8[2048,2048]; c64[768,1024] c64[1024,512]; f32[1000,777] f32[777,333]', 'f32[1024,2048] f32[2048,1024]; bf16[2048,2048] bf16[2048,2048]')
add('product', 'matmul_transposed', lambda x, y: x.T @ y, 'f32[2048,1024] f32[2048,1024]; f16[2048,512] f16[2048,512]')
add('product', 'matmul_to_f32', lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32), 'bf16[2048,2048] bf16[2048,2048]; s8[1024,2048] s8[2048,1024]')
add('product', 'matvec', jnp.matmul, 'f32[4096,4096] f32[4096]; bf16[8192,4096] bf16[4096]', 'f32[4096,2048] f32[2048]')
add('product', 'batched', lambda x, y: jnp.einsum('bij,bjk->bik', x, y), 'f32[64,256,128] f32[64,128,256]; bf16[16,512,512] bf16[16,512,512]', 'f32[64,256,128] f32[64,128,256]')
add('product', 'scores', lambda q, k: jnp.einsum('bthd,bshd->bhts', q, k), 'f32[8,512,8,64] f32[8,512,8,64]; bf16[8,512,8,64] bf16[8,512,8,64]', 'f32[8,256,8,64] f32[8,256,8,64]')
add('product', 'batch_last', lambda x, y: jnp.einsum('ijb,jkb->ikb', x, y), 'f32[128,64,96] f32[64,128,96]')
add('product', 'outer', jnp.outer, 'f32[4096] f32[4096]', 'f32[2048] f32[2048]')
add('product', 'one_hot', lambda i, t: nn.one_hot(i, 1000) @ t, 's32[4096] f32[1000,256]', 's32[4096] f32[1000,256]')
add('product', 'kron', jnp.kron, 'f32[64,64] f32[32,32]')
add('product', 'attention', nn.dot_product_attention, 'f32[4,512,8,64] f32[4,512,8,64] f32[4,512,8,64]; bf16[4,1024,8,64] bf16[4,1024,8,64] bf16[4,1024,8,64]', 'bf16[4,512,8,64] bf16[4,512,8,64] bf16[4,512,8,64]')
add('product', 'ragged_dot', lax.ragged_dot, 'f32[2048,256] f32[8,256,512] s32[8]')

add('reduction', 'sum_of_products_axis0', lambda x, y: (x * y).sum(0), 'f32[2048,1024] f32[2048,1024]; bf16[4096,512] bf16[4096,512]; f32[1024,64] f32[1024,64]')

# Movement.

add('movement', 'broadcast', lambda x: jnp.broadcast_to(x[:, None], (2048, 16, 512)), 'f32[2048,512]', 'f32[2048,512]')
add('movement', 'transpose', jnp.transpose, 'f32[4096,4096]; bf16[3000,1000]')
add('movement', 'transpose_1032', lambda x: x.transpose(0, 2, 1, 3), 'f32[16,512,12,64]; bf16[16,512,12,64]')
add('movement', 'transpose_nchw', lambda x: x.transpose(0, 3, 1, 2), 'f32[32,112,112,3]; bf16[32,56,56,64]')
add('movement', 'reshape', lambda x: x.reshape(1000, -1), 'f32[3000,777]; bf16[1024,3000]')
add('movement', 'reshape_heads', lambda x: x.reshape(16, 512, 12, 64), 'f32[16,512,768]')
add('movement', 'ravel', jnp.ravel, 'f32[500,1000,3]; bf16[1000,1000]')
add('movement', 'flatten_images', lambda x: x.reshape(x.shape[0], -1), 'f32[64,56,56,3]; f32[8,224,224,3]; bf16[64,56,56,3]')
add('movement', 'patches_of_images', lambda x: x.reshape(32, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(32, 196, 768), 'f32[32,224,224,3]')
add('movement', 'pixels', lambda x: x.reshape(-1, 3), 'f32[1024,1024,3]')
add('movement', 'pairs', lambda x: (2 * x).reshape(-1, 2), 'f32[2000000]')
add('movement', 'merge_heads', lambda x: x.transpose(0, 2, 1, 3).reshape(32, 128, 512), 'f32[32,8,128,64]')
add('movement', 'reverse', lambda x: x[::-1], 'f32[4096,1024]; bf16[4096,1024]')
add('movement', 'flip_1', lambda x: jnp.flip(x, 1), 'f32[2048,2048]')
add('movement', 'roll', lambda x: jnp.roll(x, 5, 1), 'f32[2048,2048]', 'f32[2048,2048]')
add('movement', 'concatenate', lambda x, y: jnp.concatenate([x, y], 1), 'f32[2048,1000] f32[2048,500]; bf16[64,128,512] bf16[64,128,512]', 'f32[2048,1000] f32[2048,500]')
add('movement', 'stack', lambda x, y: jnp.stack([x, y], -1), 'f32[1024,2048] f32[1024,2048]')
add('movement', 'split', lambda x: jnp.split(x, 3, -1), 'f32[4096,1536]', 'bf16[4096,1536]')
add('movement', 'pad', lambda x: jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), 'f32[32,56,56,64]', 'bf16[32,56,56,64]')
add('movement', 'pad_reflect', lambda x: jnp.pad(x, ((0, 0), (3, 3)), mode='reflect'), 'f32[2000,1000]', 'f32[2000,1000]')
add('movement', 'pad_interior', lambda x: lax.pad(x, jnp.array(0, x.dtype), ((0, 0, 1), (1, 0, 1))), 'f32[1000,1000]')
add('movement', 'tile', lambda x: jnp.tile(x, (4, 3)), 'f32[1024,512]', 'f32[1024,512]')
add('movement', 'repeat', lambda x: jnp.repeat(x, 2, 1), 'f32[16,56,56,64]', 'f32[16,28,28,64]')
add('movement', 'slice', lambda x: x[100:900, 10:1500], 'f32[1024,2048]', 'f32[1024,2048]')
add('movement', 'slice_strided', lambda x: x[:, ::2, ::2], 'f32[32,112,112,64]', 'f32[32,112,112,64]')
add('movement', 'dynamic_slice', lambda x, i: lax.dynamic_slice(x, (i, 0), (512, 2048)), 'f32[4096,2048] s32[]', 'f32[4096,2048] s32[]')
add('movement', 'dynamic_update', lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)), 'f32[4096,2048] f32[64,2048] s32[]', 'bf16[4096,2048] bf16[64,2048] s32[]')
add('movement', 'tril', jnp.tril, 'f32[2048,2048]')
add('movement', 'triu_indices', lambda x: x[jnp.triu_indices(1000)], 'f32[1000,1000]')
add('movement', 'diag', jnp.diag, 'f32[2048]', 'f32[2048]')
add('movement', 'diagonal', jnp.diagonal, 'f32[2048,2048]', 'f32[2048,2048]')
add('movement', 'iota', lambda x: jnp.arange(4000000) + x, 's32[]')
add('movement', 'eye', lambda x: jnp.eye(2048) * x, 'f32[]')
add('movement', 'meshgrid', jnp.meshgrid, 'f32[2000] f32[1500]')
add('movement', 'one_hot_alone', lambda i: nn.one_hot(i, 1000), 's32[10000]')
add('movement', 'resize', lambda x: jax.image.resize(x, (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), 'bilinear'), 'f32[16,64,64,32]', 'f32[16,64,64,32]')
add('movement', 'resize_nearest', lambda x: jax.image.resize(x, (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), 'nearest'), 'f32[16,64,64,32]')

# Gather and scatter.

add('gather', 'take_rows', lambda t, i: t[i], 'f32[32000,512] s32[8,1024]; bf16[32000,768] s32[16,512]; f32[100000,17] s32[50000]', 'f32[32000,512] s32[8,1024]; bf16[32000,512] s32[8,1024]')
add('gather', 'take_columns', lambda t, i: t[:, i], 'f32[1024,4000] s32[1000]', 'f32[1024,4000] s32[1000]')
add('gather', 'take_flat', lambda t, i: t[i], 'f32[1000000] s32[1000000]', 'f32[1000000] s32[1000000]')
add('gather', 'take_along', lambda x, i: jnp.take_along_axis(x, i, 1), 'f32[2048,1000] s32[2048,100]', 'f32[2048,1000] s32[2048,100]')
add('gather', 'take_labels', lambda x, i: jnp.take_along_axis(x, i[:, None], 1), 'f32[2048,32000] s32[2048]', 'f32[2048,8000] s32[2048]')
add('gather', 'boolean_where', lambda x: jnp.nonzero(x > 0, size=10000)[0], 'f32[1000000]')
add('scatter', 'set_rows', lambda t, i, u: t.at[i].set(u), 'f32[10000,512] s32[1000] f32[1000,512]')
add('scatter', 'add_rows', lambda t, i, u: t.at[i].add(u), 'f32[10000,512] s32[4000] f32[4000,512]; bf16[10000,512] s32[4000] bf16[4000,512]', 'f32[10000,512] s32[4000] f32[4000,512]')
add('scatter', 'max_rows', lambda t, i, u: t.at[i].max(u), 'f32[10000,256] s32[4000] f32[4000,256]')
add('scatter', 'add_flat', lambda t, i, u: t.at[i].add(u), 'f32[1000000] s32[1000000] f32[1000000]')
add('scatter', 'segment_sum', lambda x, i: jax.ops.segment_sum(x, i, 1000), 'f32[100000,64] s32[100000]', 'f32[100000,64] s32[100000]')
add('scatter', 'segment_max', lambda x, i: jax.ops.segment_max(x, i, 1000), 'f32[100000,32] s32[100000]')
add('scatter', 'histogram', lambda x: jnp.histogram(x, 100)[0], 'f32[1000000]')

# Sorting.

add('sort', 'sort', lambda x: jnp.sort(x, -1), 'f32[1000,4096]; bf16[1024,2048]; s32[1000000]', 'f32[512,2048]')
add('sort', 'sort_axis0', lambda x: jnp.sort(x, 0), 'f32[4096,500]')
add('sort', 'argsort', lambda x: jnp.argsort(x, -1), 'f32[1024,2048]; bf16[1000000]')
add('sort', 'sort_by_key', lambda k, v: lax.sort((k, v), num_keys=1), 's32[1000000] f32[1000000]')
add('sort', 'top_k', lambda x: lax.top_k(x, 8), 'f32[512,32000]; bf16[256,32000]', 'f32[512,8000]')
add('sort', 'approx_max_k', lambda x: lax.approx_max_k(x, 8), 'f32[512,32000]')
add('sort', 'unique', lambda x: jnp.unique(x, size=1000), 's32[500000]')
add('sort', 'searchsorted', jnp.searchsorted, 'f32[100000] f32[500000]')
add('sort', 'permutation', lambda k, x: jax.random.permutation(jax.random.wrap_key_data(k), x), 'key[2] f32[500000]')

# Random numbers.

draw = lambda f, *rest, **k: (lambda key: f(jax.random.wrap_key_data(key), *rest, **k))
add('random', 'bits', draw(jax.random.bits, (4096, 2048)), 'key[2]')
add('random', 'bits_u8', draw(jax.random.bits, (4096, 2048), jnp.uint8), 'key[2]')
add('random', 'uniform', draw(jax.random.uniform, (1000, 3000)), 'key[2]')
add('random', 'uniform_bf16', draw(jax.random.uniform, (4096, 4096), jnp.bfloat16), 'key[2]')
add('random', 'normal', draw(jax.random.normal, (4096, 2048)), 'key[2]')
add('random', 'normal_bf16', draw(jax.random.normal, (2048, 2048), jnp.bfloat16), 'key[2]')
add('random', 'randint', draw(jax.random.randint, (2048, 2048), 0, 1000), 'key[2]')
add('random', 'gumbel', draw(jax.random.gumbel, (512, 8000)), 'key[2]')
add('random', 'bernoulli', draw(jax.random.bernoulli, .1, (4096, 4096)), 'key[2]')
add('random', 'categorical', lambda key, x: jax.random.categorical(jax.random.wrap_key_data(key), x), 'key[2] f32[512,8000]')
dropout = lambda key, x: jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), .9, x.shape), x / .9, 0)
add('random', 'dropout', dropout, 'key[2] bf16[16,512,1024]')
add('random', 'rng_bit_generator', lambda key: lax.rng_bit_generator(key, (2048, 2048))[1], 'key[4]')

# Fourier transforms.

add('fft', 'fft', jnp.fft.fft, 'c64[1024,1024]; c64[1000,1000]')
add('fft', 'rfft', jnp.fft.rfft, 'f32[1024,2048]', 'f32[512,1024]')
add('fft', 'irfft', jnp.fft.irfft, 'c64[1024,1025]')
add('fft', 'fft2', jnp.fft.fft2, 'c64[4,512,512]', 'c64[2,512,512]')
add('fft', 'fft_axis0', lambda x: jnp.fft.fft(x, axis=0), 'c64[1024,512]')

# Linear algebra.

triangular = lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True)
symmetric = lambda x: x @ x.T + jnp.eye(len(x))
add('linear algebra', 'triangular_solve', triangular, 'f32[1024,1024] f32[1024,512]', 'f32[512,512] f32[512,256]')
add('linear algebra', 'cholesky', jnp.linalg.cholesky, 'f32[1024,1024]', 'f32[512,512]')
add('linear algebra', 'solve', jnp.linalg.solve, 'f32[512,512] f32[512,256]')
add('linear algebra', 'qr', lambda x: jnp.linalg.qr(x), 'f32[1024,256]')
add('linear algebra', 'eigh', lambda x: jnp.linalg.eigh(x), 'f32[512,512]')
add('linear algebra', 'svd', lambda x: jnp.linalg.svd(x, full_matrices=False), 'f32[512,256]')
add('linear algebra', 'inv', jnp.linalg.inv, 'f32[512,512]')
add('linear algebra', 'expm', jax.scipy.linalg.expm, 'f32[512,512]')

# Control flow.

add('control flow', 'scan_stack', lambda x, xs: lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), x, xs), 'f32[256,512] f32[32,256,512]', 'f32[256,512] f32[32,256,512]')
add('control flow', 'scan_matmul', lambda w, x: lax.fori_loop(0, 10, lambda _, x: jnp.tanh(x @ w), x), 'bf16[1024,1024] bf16[2048,1024]')
add('control flow', 'while', lambda x: lax.while_loop(lambda s: s[0] < 100, lambda s: (s[0] + 1, s[1] * 1.1 + x), (0, x))[1], 'f32[1024,2048]')
add('control flow', 'cond', lambda p, x, y: lax.cond(p, lambda x, y: x @ y, lambda x, y: x - y, x, y), 'pred[] f32[1024,1024] f32[1024,1024]')
add('control flow', 'map', lambda x: lax.map(lambda row: jnp.outer(row, row).sum(0), x), 'f32[128,1024]')


def in_turns():
    """Names of programs, one of each kind after the other, so that a table of the first of them is about all."""
    turns = {}
    for name, (kind, *_) in PROGRAMS.items():
        turns.setdefault(kind, []).append(name)
    return sorted(PROGRAMS, key=lambda name: turns[PROGRAMS[name][0]].index(name))


def module(name, sharding):
    """A program, lowered."""
    _, function, arguments = PROGRAMS[name]
    return jax.jit(function).lower(*xla_compilers.placed(arguments, sharding))


def bytes_of(compiled):
    """Bytes that XLA needs for a program."""
    stats = compiled.memory_analysis()
    part = lambda field: getattr(stats, f'{field}_size_in_bytes')
    return part('argument') + part('output') - part('alias') + part('temp')


def main():
    folder, known, *parts = sys.argv[2:]
    asks, end = parts[:1] == ['--ask'], float('inf')
    if asks:
        end, parts = time.time() + float(parts[1]), parts[2:]
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(known):
        with open(known, 'w') as out:
            out.write('\t'.join(FIELDS) + '\n')
    asked = {tuple(line.split('\t')[:2]) for line in open(known)}
    sharding = xla_compilers.sharding(BACKEND)
    for name in in_turns():
        path, asking = f'{folder}/{name}.hlo.txt', asks and (name, BACKEND) not in asked
        if parts and not any(part in f'{PROGRAMS[name][0]} {name}' for part in parts) or os.path.exists(path) and not asking:
            continue
        if time.time() > end:
            break
        total, seconds = '', 0
        try:
            lowered = module(name, sharding)
            with open(f'{path}.part', 'w') as out:
                out.write(lowered.as_text('hlo'))
            os.replace(f'{path}.part', path)
            if asking:
                start = time.time()
                compiled = lowered.compile()
                total, seconds = bytes_of(compiled), time.time() - start
                with open(f'{folder}/{name}.xla.txt', 'w') as out:
                    out.write(compiled.as_text())
        except Exception as error:
            print(f'{name}: {str(error).splitlines()[0]}', file=sys.stderr)
        if asking:
            with open(known, 'a') as out:
                out.write('\t'.join([name, BACKEND, str(total), f'{seconds:.1f}']) + '\n')


if __name__ == '__main__':
    main()
