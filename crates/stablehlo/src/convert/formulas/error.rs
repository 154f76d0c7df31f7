//! The error function's complement (Cephes) and inverse (M. Giles, 2010).

use super::{Value, polynomial};

/// Near zero by the error function; elsewhere by an approximation for large numbers, reflected for negative ones.
pub(super) fn erfc(x: Value<'_>) -> Value<'_> {
    let [near, far] = match x.is_double() {
        true => [1.0 - erf_of_small(x), erfc_of_large(x)],
        false => {
            let near = x * polynomial(x * x, &ERF);
            [1.0 - near, erfc_of_large_single(x)]
        }
    };
    x.abs().lt(1.0).select(near, far)
}

/// `x * T(x^2) / U(x^2)`.
fn erf_of_small(x: Value<'_>) -> Value<'_> {
    let square = x * x;
    x * polynomial(square, &ERF_T) / polynomial(square, &ERF_U)
}

/// `exp(-x^2) * P(|x|) / Q(|x|)`, beyond 8 with `R` and `S`.
fn erfc_of_large(x: Value<'_>) -> Value<'_> {
    let minus = -(x * x);
    let power = minus.exp();
    let size = x.abs();
    let middle = power * polynomial(size, &ERFC_P) / polynomial(size, &ERFC_Q);
    let outer = power * polynomial(size, &ERFC_R) / polynomial(size, &ERFC_S);
    reflected(x, minus, size.lt(8.0).select(middle, outer), 709.782_712_893_384)
}

/// `exp(-x^2) / |x| * P(1 / x^2)`.
fn erfc_of_large_single(x: Value<'_>) -> Value<'_> {
    let square = x * x;
    let minus = -square;
    let size = x.abs();
    let inverse = 1.0 / square;
    let factor = minus.exp() * (1.0 / size);
    let series = size.lt(2.0).select(polynomial(inverse, &ERFC_MIDDLE), polynomial(inverse, &ERFC_OUTER));
    reflected(x, minus, factor * series, 88.722_84)
}

/// Zero where `exp` has no number, and 2 less of it for negative `x`.
fn reflected<'w>(x: Value<'w>, minus: Value<'w>, value: Value<'w>, most: f64) -> Value<'w> {
    let value = minus.lt(-most).select(0.0, value);
    x.lt(0.0).select(2.0 - value, value)
}

/// Polynomials in `w = -log(1 - x^2)`, another one for each range of `w`.
pub(super) fn erf_inv(x: Value<'_>) -> Value<'_> {
    let w = -(x * -x).log1p();
    let sum = if x.is_double() { double(w) } else { single(w) };
    x.abs().eq(1.0).select(x * f64::INFINITY, sum * x)
}

fn single(w: Value<'_>) -> Value<'_> {
    let is_central = w.lt(5.0);
    let w = is_central.select(w - 2.5, w.sqrt() - 3.0);
    let coefficient = |i: usize| is_central.select(CENTRAL[i], w.number(TAIL[i]));
    (1..CENTRAL.len()).fold(coefficient(0), |sum, i| coefficient(i) + sum * w)
}

fn double(w: Value<'_>) -> Value<'_> {
    let [is_central, is_middle] = [w.lt(6.25), w.lt(16.0)];
    let tail = w.sqrt() - is_middle.select(3.25, w.number(5.0));
    let w = is_central.select(w - 3.125, tail);
    let select = |i: usize| {
        let inner = is_central.select(CENTRAL_DOUBLE[i], w.number(MIDDLE_DOUBLE[i]));
        match TAIL_DOUBLE.get(i) {
            Some(&tail) => is_middle.select(inner, w.number(tail)),
            None => inner,
        }
    };
    // The ranges have fewer terms from one to the next.
    (1..CENTRAL_DOUBLE.len()).fold(select(0), |sum, i| match i {
        _ if i < TAIL_DOUBLE.len() => select(i) + sum * w,
        _ if i < MIDDLE_DOUBLE.len() => is_middle.select(select(i) + sum * w, sum),
        _ => is_central.select(sum * w + CENTRAL_DOUBLE[i], sum),
    })
}

/// `erf(x) / x` in powers of `x^2`, up to 1.
#[allow(clippy::approx_constant, reason = "the coefficient that fits best is not the limit at 0")]
const ERF: [f64; 7] = [
    7.853_861_5e-5,
    -8.010_193_7e-4,
    5.188_327_7e-3,
    -2.685_381_3e-2,
    1.128_358_54e-1,
    -3.761_262_6e-1,
    1.128_379_1,
];

/// `erfc(x) * exp(x^2) * x` in powers of `1 / x^2`, from 1 to 2.
const ERFC_MIDDLE: [f64; 9] = [
    2.326_82e-2,
    -1.387_039_4e-1,
    3.687_424_7e-1,
    -5.824_733e-1,
    6.210_004_7e-1,
    -4.944_515_2e-1,
    3.404_88e-1,
    -2.741_127e-1,
    5.638_259_6e-1,
];

/// The same beyond 2.
const ERFC_OUTER: [f64; 8] = [
    -1.047_766_4e1,
    1.297_72e1,
    -7.495_518_7,
    2.921_019,
    -1.015_265_2,
    4.218_463_3e-1,
    -2.820_767_5e-1,
    5.641_895e-1,
];

/// `erf_inv(x) / x` in powers of `w - 2.5`.
const CENTRAL: [f64; 9] = [
    2.810_226_4e-8,
    3.432_739_4e-7,
    -3.523_387_7e-6,
    -4.391_506_5e-6,
    2.185_808_7e-4,
    -1.253_725e-3,
    -4.177_681_6e-3,
    0.246_640_73,
    1.501_409_4,
];

/// The same in powers of `sqrt(w) - 3`.
const TAIL: [f64; 9] = [
    -2.002_142_6e-4,
    1.009_505_6e-4,
    1.349_343_2e-3,
    -3.673_428_4e-3,
    5.739_507_7e-3,
    -7.622_461_3e-3,
    9.438_870_5e-3,
    1.001_674,
    2.832_976_8,
];

/// `erf(x) / x` in double precision, above.
const ERF_T: [f64; 5] = [
    9.604_973_739_870_516,
    90.026_019_720_384_27,
    2_232.005_345_946_843,
    7_003.325_141_128_051,
    55_592.301_301_039_49,
];

/// And below.
const ERF_U: [f64; 6] = [
    1.0,
    33.561_714_164_750_31,
    521.357_949_780_152_7,
    4_594.323_829_709_801,
    22_629.000_061_389_095,
    49_267.394_260_863_59,
];

/// `erfc(x) * exp(x^2)` in double precision from 1 to 8, above.
const ERFC_P: [f64; 9] = [
    2.461_969_814_735_305e-10,
    0.564_189_564_831_068_9,
    7.463_210_564_422_699,
    48.637_197_098_568_14,
    196.520_832_956_077_1,
    526.445_194_995_477_3,
    934.528_527_171_957_6,
    1_027.551_886_895_157_2,
    557.535_335_369_399_4,
];

/// And below.
const ERFC_Q: [f64; 9] = [
    1.0,
    13.228_195_115_474_499,
    86.707_214_088_598_97,
    354.937_778_887_819_9,
    975.708_501_743_205_5,
    1_823.909_166_879_097_3,
    2_246.337_608_187_109_7,
    1_656.663_091_941_613_4,
    557.535_340_817_727_7,
];

/// The same beyond 8, above.
const ERFC_R: [f64; 6] = [
    0.564_189_583_547_755_1,
    1.275_366_707_599_781,
    5.019_050_422_511_805,
    6.160_210_979_930_536,
    7.409_742_699_504_489_5,
    2.978_866_653_721_002_2,
];

/// And below.
const ERFC_S: [f64; 7] = [
    1.0,
    2.260_528_632_201_172_6,
    9.396_035_249_380_015,
    12.048_953_980_809_666,
    17.081_445_074_756_59,
    9.608_968_090_632_859,
    3.369_076_451_000_815,
];

/// `erf_inv(x) / x` in double precision, in powers of `w - 3.125`.
const CENTRAL_DOUBLE: [f64; 23] = [
    -3.644_412_064_017_82e-21,
    -1.685_059_138_182_016_6e-19,
    1.285_848_071_525_64e-18,
    1.115_787_767_802_518_1e-17,
    -1.333_171_662_854_621e-16,
    2.097_276_787_596_856_2e-17,
    6.637_638_134_358_324e-15,
    -4.054_566_272_975_207e-14,
    -8.151_934_197_605_472e-14,
    2.633_509_315_308_232_3e-12,
    -1.297_513_325_345_353_2e-11,
    -5.415_412_054_294_628e-11,
    1.051_212_273_321_532_3e-9,
    -4.112_633_980_346_984e-9,
    -2.907_036_995_788_200_5e-8,
    4.234_787_782_793_240_4e-7,
    -1.365_469_200_083_467_9e-6,
    -1.388_252_336_278_646_9e-5,
    0.000_186_734_208_034_057_14,
    -0.000_740_702_534_166_267,
    -0.006_033_670_871_430_149,
    0.240_158_182_425_589_62,
    1.653_654_562_683_102_7,
];

/// The same in powers of `sqrt(w) - 3.25`.
const MIDDLE_DOUBLE: [f64; 19] = [
    2.213_737_692_177_578_7e-9,
    9.075_656_193_888_539e-8,
    -2.751_740_629_706_454_5e-7,
    1.823_962_921_438_922_8e-8,
    1.502_740_396_890_982_8e-6,
    -4.013_867_526_981_546e-6,
    2.923_444_908_995_544_6e-6,
    1.247_530_448_167_177_9e-5,
    -4.731_822_900_905_573_4e-5,
    6.828_485_145_957_318e-5,
    2.403_111_038_709_789_4e-5,
    -0.000_355_037_520_362_847_5,
    0.000_953_289_379_737_380_5,
    -0.001_688_275_556_023_504_7,
    0.002_491_442_096_107_851,
    -0.003_751_208_507_569_241,
    0.005_370_914_553_590_064,
    1.005_258_967_694_159_2,
    3.083_885_610_492_220_8,
];

/// The same in powers of `sqrt(w) - 5`.
const TAIL_DOUBLE: [f64; 17] = [
    -2.710_992_061_643_857_3e-11,
    -2.555_641_816_996_525e-10,
    1.507_657_269_350_054_8e-9,
    -3.789_465_440_126_737e-9,
    7.615_701_208_078_34e-9,
    -1.496_002_662_714_924e-8,
    2.914_795_345_090_108e-8,
    -6.771_199_775_845_234e-8,
    2.290_048_222_802_665_5e-7,
    -9.929_827_294_231_7e-7,
    4.526_062_597_223_154e-6,
    -1.968_177_810_553_167e-5,
    7.599_527_703_001_776e-5,
    -0.000_215_030_119_300_444_77,
    -0.000_138_719_318_336_231_22,
    1.010_300_464_864_534_4,
    4.849_906_401_408_584,
];
