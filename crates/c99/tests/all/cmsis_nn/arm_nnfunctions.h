/* Stands in for CMSIS-NN in tests: kernels of the same names and types that compute what its documentation says, one number
   after the other. A kernel fills all scratch that the real one may use. */
#ifndef ARM_NNFUNCTIONS_H
#define ARM_NNFUNCTIONS_H

#include <stdint.h>
#include <string.h>

typedef enum { ARM_CMSIS_NN_SUCCESS = 0, ARM_CMSIS_NN_ARG_ERROR = -1 } arm_cmsis_nn_status;
typedef struct { int32_t w, h; } cmsis_nn_tile;
typedef struct { void *buf; int32_t size; } cmsis_nn_context;
typedef struct { int32_t n, h, w, c; } cmsis_nn_dims;
typedef struct { int32_t *multiplier, *shift; } cmsis_nn_per_channel_quant_params;
typedef struct { int32_t *multiplier, *shift; int32_t is_per_channel; } cmsis_nn_quant_params;
typedef struct { int32_t min, max; } cmsis_nn_activation;
typedef struct {
    int32_t input_offset, output_offset;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_conv_params;
typedef struct {
    int32_t input_offset, output_offset, ch_mult;
    cmsis_nn_tile stride, padding, dilation;
    cmsis_nn_activation activation;
} cmsis_nn_dw_conv_params;
typedef struct {
    cmsis_nn_tile stride, padding;
    cmsis_nn_activation activation;
} cmsis_nn_pool_params;
typedef struct {
    int32_t input_offset, filter_offset, output_offset;
    cmsis_nn_activation activation;
} cmsis_nn_fc_params;

static inline int64_t shifted(int64_t value, int32_t by)
{
    return by >= 0 ? value * ((int64_t)1 << by) : (value - (((int64_t)1 << -by) - 1) * (value < 0)) / ((int64_t)1 << -by);
}

/* A sum times multiplier * 2^(shift - 31). */
static inline int64_t scaled(int64_t sum, int32_t multiplier, int32_t shift)
{
#ifdef CMSIS_NN_USE_SINGLE_ROUNDING
    return shifted(sum * multiplier + ((int64_t)1 << (30 - shift)), shift - 31);
#else
    int32_t left = shift > 0 ? shift : 0, right = shift < 0 ? -shift : 0;
    int64_t high = shifted(shifted(sum, left) * multiplier + ((int64_t)1 << 30), -31);
    int64_t half = right > 0 ? (int64_t)1 << (right - 1) : 0;
    return high < 0 ? -shifted(half - high, -right) : shifted(high + half, -right);
#endif
}

static inline int8_t clamped(int64_t value, cmsis_nn_activation limits)
{
    value = value < limits.min ? limits.min : value;
    return (int8_t)(value > limits.max ? limits.max : value);
}

static inline void use(const cmsis_nn_context *context, int32_t bytes)
{
    if (bytes > 0) {
        memset(context->buf, 0x5a, (size_t)bytes);
    }
}

static inline int32_t arm_convolve_wrapper_s8_get_buffer_size(
    const cmsis_nn_conv_params *p, const cmsis_nn_dims *input, const cmsis_nn_dims *filter, const cmsis_nn_dims *output)
{
    int is_pointwise = filter->h == 1 && filter->w == 1 && p->padding.h == 0 && p->padding.w == 0;
    (void)output;
    return is_pointwise ? 0 : 2 * 2 * ((filter->h * filter->w * input->c + 3) / 4 * 4);
}

static inline int32_t arm_depthwise_conv_wrapper_s8_get_buffer_size(
    const cmsis_nn_dw_conv_params *p, const cmsis_nn_dims *input, const cmsis_nn_dims *filter, const cmsis_nn_dims *output)
{
    int is_small = filter->h == 3 && filter->w == 3 && p->padding.h <= 1 && p->padding.w <= 1;
    int is_plain = input->c == output->c && input->n == 1 && p->dilation.h == 1 && p->dilation.w == 1;
    return is_plain && !is_small ? 2 * filter->h * filter->w * input->c : 0;
}

static inline int32_t arm_fully_connected_s8_get_buffer_size(const cmsis_nn_dims *filter)
{
    (void)filter;
    return 0;
}

static inline int32_t arm_avgpool_s8_get_buffer_size(int width, int channels)
{
    (void)width;
    return 4 * channels;
}

/* The element of an array of images, 0 beyond their borders. */
static inline int32_t pixel(const cmsis_nn_dims *d, const int8_t *data, int32_t n, int32_t y, int32_t x, int32_t c)
{
    return y < 0 || x < 0 || y >= d->h || x >= d->w ? 0 : data[((n * d->h + y) * d->w + x) * d->c + c];
}

static inline arm_cmsis_nn_status arm_convolve_wrapper_s8(
    const cmsis_nn_context *context, const cmsis_nn_conv_params *p, const cmsis_nn_per_channel_quant_params *scale,
    const cmsis_nn_dims *input, const int8_t *from, const cmsis_nn_dims *filter, const int8_t *weights,
    const cmsis_nn_dims *bias, const int32_t *add, const cmsis_nn_dims *output, int8_t *to)
{
    int32_t n, y, x, o, i, j, c;
    (void)bias;
    use(context, arm_convolve_wrapper_s8_get_buffer_size(p, input, filter, output));
    for (n = 0; n < output->n; ++n) for (y = 0; y < output->h; ++y) for (x = 0; x < output->w; ++x)
    for (o = 0; o < output->c; ++o) {
        int32_t sum = add[o];
        for (i = 0; i < filter->h; ++i) for (j = 0; j < filter->w; ++j) for (c = 0; c < filter->c; ++c) {
            int32_t row = y * p->stride.h - p->padding.h + i * p->dilation.h;
            int32_t column = x * p->stride.w - p->padding.w + j * p->dilation.w;
            sum += pixel(input, from, n, row, column, c) * weights[((o * filter->h + i) * filter->w + j) * filter->c + c];
        }
        *to++ = clamped(scaled(sum, scale->multiplier[o], scale->shift[o]), p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

static inline arm_cmsis_nn_status arm_depthwise_conv_wrapper_s8(
    const cmsis_nn_context *context, const cmsis_nn_dw_conv_params *p, const cmsis_nn_per_channel_quant_params *scale,
    const cmsis_nn_dims *input, const int8_t *from, const cmsis_nn_dims *filter, const int8_t *weights,
    const cmsis_nn_dims *bias, const int32_t *add, const cmsis_nn_dims *output, int8_t *to)
{
    int32_t n, y, x, o, i, j;
    (void)bias;
    use(context, arm_depthwise_conv_wrapper_s8_get_buffer_size(p, input, filter, output));
    for (n = 0; n < output->n; ++n) for (y = 0; y < output->h; ++y) for (x = 0; x < output->w; ++x)
    for (o = 0; o < output->c; ++o) {
        int32_t sum = add[o];
        for (i = 0; i < filter->h; ++i) for (j = 0; j < filter->w; ++j) {
            int32_t row = y * p->stride.h - p->padding.h + i * p->dilation.h;
            int32_t column = x * p->stride.w - p->padding.w + j * p->dilation.w;
            int32_t element = pixel(input, from, n, row, column, o / p->ch_mult);
            sum += element * weights[(i * filter->w + j) * filter->c + o];
        }
        *to++ = clamped(scaled(sum, scale->multiplier[o], scale->shift[o]), p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

static inline arm_cmsis_nn_status arm_fully_connected_wrapper_s8(
    const cmsis_nn_context *context, const cmsis_nn_fc_params *p, const cmsis_nn_quant_params *scale,
    const cmsis_nn_dims *input, const int8_t *from, const cmsis_nn_dims *filter, const int8_t *weights,
    const cmsis_nn_dims *bias, const int32_t *add, const cmsis_nn_dims *output, int8_t *to)
{
    int32_t n, o, k;
    (void)bias;
    use(context, arm_fully_connected_s8_get_buffer_size(filter));
    for (n = 0; n < input->n; ++n) for (o = 0; o < output->c; ++o) {
        int32_t sum = add[o], at = scale->is_per_channel ? o : 0;
        for (k = 0; k < filter->n; ++k) {
            sum += from[n * filter->n + k] * weights[o * filter->n + k];
        }
        *to++ = clamped(scaled(sum, scale->multiplier[at], scale->shift[at]), p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

static inline arm_cmsis_nn_status arm_max_pool_s8(
    const cmsis_nn_context *context, const cmsis_nn_pool_params *p, const cmsis_nn_dims *input, const int8_t *from,
    const cmsis_nn_dims *filter, const cmsis_nn_dims *output, int8_t *to)
{
    int32_t n, y, x, c, i, j;
    (void)context;
    for (n = 0; n < output->n; ++n) for (y = 0; y < output->h; ++y) for (x = 0; x < output->w; ++x)
    for (c = 0; c < output->c; ++c) {
        int32_t most = -128;
        for (i = 0; i < filter->h; ++i) for (j = 0; j < filter->w; ++j) {
            int32_t row = y * p->stride.h - p->padding.h + i, column = x * p->stride.w - p->padding.w + j;
            int is_there = row >= 0 && column >= 0 && row < input->h && column < input->w;
            int32_t element = is_there ? pixel(input, from, n, row, column, c) : -128;
            most = element > most ? element : most;
        }
        *to++ = clamped(most, p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

/* Of windows that are within the image. */
static inline arm_cmsis_nn_status arm_avgpool_s8(
    const cmsis_nn_context *context, const cmsis_nn_pool_params *p, const cmsis_nn_dims *input, const int8_t *from,
    const cmsis_nn_dims *filter, const cmsis_nn_dims *output, int8_t *to)
{
    int32_t n, y, x, c, i, j, count = filter->h * filter->w;
    use(context, arm_avgpool_s8_get_buffer_size(output->w, input->c));
    for (n = 0; n < output->n; ++n) for (y = 0; y < output->h; ++y) for (x = 0; x < output->w; ++x)
    for (c = 0; c < output->c; ++c) {
        int32_t sum = 0;
        for (i = 0; i < filter->h; ++i) for (j = 0; j < filter->w; ++j) {
            sum += pixel(input, from, n, y * p->stride.h + i, x * p->stride.w + j, c);
        }
        *to++ = clamped((sum > 0 ? sum + count / 2 : sum - count / 2) / count, p->activation);
    }
    return ARM_CMSIS_NN_SUCCESS;
}

#endif
