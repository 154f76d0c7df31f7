//! The Bessel function of the first order, scaled by an exponential (Cephes).

use super::Value;

/// Series of Chebyshev's polynomials: for numbers up to 8, and for the inverses of those beyond.
pub(super) fn i1e(x: Value<'_>) -> Value<'_> {
    // The last terms are enough for single precision.
    let [n_near, n_far] = if x.is_double() { [NEAR.len(), FAR.len()] } else { [17, 7] };
    let size = x.abs();
    let near = size * chebyshev(size * 0.5 - 2.0, &NEAR[NEAR.len() - n_near..]);
    let far = chebyshev(32.0 / size - 2.0, &FAR[FAR.len() - n_far..]) / size.sqrt();
    x.sign() * size.le(8.0).select(near, far)
}

/// Clenshaw's recurrence, the highest polynomial first.
fn chebyshev<'w>(x: Value<'w>, coefficients: &[f64]) -> Value<'w> {
    // `None` is zero.
    let [mut last, mut before, mut oldest] = [None; 3];
    for &coefficient in coefficients {
        [before, oldest] = [last, before];
        let product = x * before.unwrap_or_else(|| x.number(0.0));
        last = Some(oldest.map_or(product, |oldest| product - oldest) + coefficient);
    }
    match (last, oldest) {
        (Some(last), Some(oldest)) => (last - oldest) * 0.5,
        _ => x,
    }
}

const NEAR: [f64; 29] = [
    2.777_914_112_761_046_4e-18,
    -2.111_421_214_358_166e-17,
    1.553_631_957_736_200_5e-16,
    -1.105_596_947_735_386_2e-15,
    7.600_684_294_735_408e-15,
    -5.042_185_504_727_912e-14,
    3.223_793_365_945_575e-13,
    -1.983_974_397_764_943_6e-12,
    1.173_618_629_889_090_1e-11,
    -6.663_489_723_502_027e-11,
    3.625_590_281_552_117e-10,
    -1.887_249_751_722_829_4e-9,
    9.381_537_386_495_773e-9,
    -4.445_059_128_796_328e-8,
    2.003_294_753_552_135_3e-7,
    -8.568_720_264_695_455e-7,
    3.470_251_308_137_678_5e-6,
    -1.327_316_365_603_943_6e-5,
    4.781_565_107_550_054e-5,
    -0.000_161_760_815_825_896_74,
    0.000_512_285_956_168_575_8,
    -0.001_513_572_450_631_253_2,
    0.004_156_422_944_312_888,
    -0.010_564_084_894_626_197,
    0.024_726_449_030_626_516,
    -0.052_945_981_208_094_99,
    0.102_643_658_689_847_1,
    -0.176_416_518_357_834_06,
    0.252_587_186_443_633_65,
];

const FAR: [f64; 25] = [
    7.517_296_310_842_105e-18,
    4.414_348_323_071_708e-18,
    -4.650_305_368_489_358_6e-17,
    -3.209_525_921_993_424e-17,
    2.962_628_997_645_95e-16,
    3.308_202_310_920_928_5e-16,
    -1.880_354_775_510_782_5e-15,
    -3.814_403_072_437_007_5e-15,
    1.042_027_698_412_880_2e-14,
    4.272_440_016_711_951e-14,
    -2.101_541_842_772_664_3e-14,
    -4.083_551_111_092_197_4e-13,
    -7.198_551_776_245_908e-13,
    2.035_628_544_147_089_6e-12,
    1.412_580_743_661_378_2e-11,
    3.252_603_583_015_488_4e-11,
    -1.897_495_812_350_541_3e-11,
    -5.589_743_462_196_584e-10,
    -3.835_380_385_964_237e-9,
    -2.631_468_846_889_519_6e-8,
    -2.512_236_237_870_209e-7,
    -3.882_564_808_877_691e-6,
    -0.000_110_588_938_762_623_71,
    -0.009_761_097_491_361_469,
    0.778_576_235_018_280_1,
];
