//! Branch-free arithmetic of elements, which compilers turn into vector code.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_ps, _mm256_storeu_ps,
};

/// An element in its memory format, with the number type in which it is reduced.
///
/// Every bit pattern is a valid element.
pub(super) trait Element: Copy {
    /// A type that holds the sum and the product of two elements without rounding, or modulo the same
    /// range.
    type Number: Number;
    /// The element of zero bytes.
    const ZERO: Self;

    /// Converts a block of elements to numbers. `N` must be a multiple of 8.
    fn widen<const N: usize>(block: &[Self; N]) -> [Self::Number; N];
    /// Rounds numbers to the nearest elements; of two equally near elements, to the even one.
    fn narrow<const N: usize>(block: &[Self::Number; N]) -> [Self; N];
}

pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Returns the maximum. If `self` is NaN, returns `other`; if both are equal, returns `self`.
    fn max(self, other: Self) -> Self;
    /// Returns the minimum. If `self` is NaN, returns `other`; if both are equal, returns `self`.
    fn min(self, other: Self) -> Self;
    /// Returns the number divided by `nranks`; integers are rounded towards zero.
    fn divide(self, nranks: u32) -> Self;
}

/// Computes `a / nranks` of 32 bits. Processors divide vectors of floats but not of integers. A double
/// has more bits than `a`, so no quotient is rounded up to the next integer.
macro_rules! long_quotient {
    ($a:ident, $nranks:ident) => {{
        let quotient = f64::from($a) / f64::from(Ord::max($nranks, 1));
        // SAFETY: the quotient is no greater than `a`.
        unsafe { quotient.to_int_unchecked() }
    }};
}

/// Computes `a / nranks` of 8 bits. An `f32` may round the number of ranks, but only a number that is
/// far greater than `a`.
#[inline(always)]
fn short_quotient(a: i16, nranks: u32) -> i32 {
    let quotient = f32::from(a) / Ord::max(nranks, 1) as f32;
    // SAFETY: the quotient is no greater than `a`.
    unsafe { quotient.to_int_unchecked() }
}

macro_rules! integer {
    ($($int:ty: |$a:ident, $n:ident| $quotient:expr),*) => {$(
        impl Element for $int {
            type Number = $int;
            const ZERO: Self = 0;

            #[inline(always)]
            fn widen<const N: usize>(block: &[Self; N]) -> [Self; N] {
                *block
            }

            #[inline(always)]
            fn narrow<const N: usize>(block: &[Self; N]) -> [Self; N] {
                *block
            }
        }

        impl Number for $int {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn divide(self, nranks: u32) -> Self {
                let ($a, $n) = (self, nranks);
                $quotient
            }
        }
    )*};
}

integer!(i8: |a, n| short_quotient(a.into(), n) as i8, u8: |a, n| short_quotient(a.into(), n) as u8);
integer!(i32: |a, n| long_quotient!(a, n), u32: |a, n| long_quotient!(a, n));
integer!(i64: |a, n| a / i64::from(n), u64: |a, n| a / u64::from(n));

macro_rules! float {
    ($($float:ty),*) => {$(
        impl Element for $float {
            type Number = $float;
            const ZERO: Self = 0.0;

            #[inline(always)]
            fn widen<const N: usize>(block: &[Self; N]) -> [Self; N] {
                *block
            }

            #[inline(always)]
            fn narrow<const N: usize>(block: &[Self; N]) -> [Self; N] {
                *block
            }
        }

        impl Number for $float {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            // If both zeros are equal, `f32::max` may return either, but all ranks must get the same
            // result.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self >= other || other.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self <= other || other.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn divide(self, nranks: u32) -> Self {
                self * (1.0 / nranks as $float)
            }
        }
    )*};
}

float!(f32, f64);

/// IEEE 754 binary16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct F16(pub(super) u16);

/// The upper half of an `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Bf16(pub(super) u16);

const F32_INFINITY: u32 = f32::INFINITY.to_bits();
/// The least positive `F16`, 2^-24.
const SUBNORMAL_UNIT: f32 = f32::from_bits((127 - 24) << 23);

impl F16 {
    #[inline(always)]
    pub(super) fn number(self) -> f32 {
        let sign = u32::from(self.0 & 0x8000) << 16;
        let magnitude = u32::from(self.0 & 0x7fff);
        // The value is converted as an integer, because processors are slow on subnormal floats.
        let subnormal = (magnitude as i32 as f32 * SUBNORMAL_UNIT).to_bits();
        // The exponent's bias changes from 15 to 127. The greatest exponent maps to the greatest
        // exponent.
        let rebias = if magnitude < 0x7c00 { 127 - 15 } else { 2 * (127 - 15) };
        let normal = (magnitude << 13) + (rebias << 23);
        f32::from_bits(sign | if magnitude < 0x400 { subnormal } else { normal })
    }

    #[inline(always)]
    pub(super) fn of(number: f32) -> Self {
        const MIN_NORMAL: u32 = (127 - 14) << 23;
        const PAST_MAX: u32 = (127 + 16) << 23;
        const HALF: u32 = 0.5f32.to_bits();
        let sign = (number.to_bits() >> 16) & 0x8000;
        let magnitude = number.to_bits() & 0x7fff_ffff;
        let even = (magnitude >> 13) & 1;
        let capped = if magnitude < PAST_MAX { magnitude } else { PAST_MAX };
        let normal = capped.wrapping_add(0xfff + even).wrapping_sub(112 << 23) >> 13;
        // The addition of 1/2 rounds the number: the last bit of 1/2 has the same weight as that of a
        // subnormal number.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(HALF);
        let finite = if magnitude < MIN_NORMAL { subnormal } else { normal };
        let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
        F16((sign | if magnitude > F32_INFINITY { nan } else { finite }) as u16)
    }
}

impl Bf16 {
    #[inline(always)]
    pub(super) fn number(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    pub(super) fn of(number: f32) -> Self {
        let bits = number.to_bits();
        let even = (bits >> 16) & 1;
        let rounded = bits.wrapping_add(0x7fff + even) >> 16;
        let nan = (bits >> 16) | 0x40;
        Bf16(if bits & 0x7fff_ffff > F32_INFINITY { nan } else { rounded } as u16)
    }
}

macro_rules! half {
    ($($half:ty),*) => {$(
        impl Element for $half {
            type Number = f32;
            const ZERO: Self = Self(0);

            #[inline(always)]
            fn widen<const N: usize>(block: &[Self; N]) -> [f32; N] {
                let mut numbers = [0.0; N];
                for (number, half) in numbers.iter_mut().zip(block) {
                    *number = half.number();
                }
                numbers
            }

            #[inline(always)]
            fn narrow<const N: usize>(block: &[f32; N]) -> [Self; N] {
                let mut halves = [Self::ZERO; N];
                for (half, number) in halves.iter_mut().zip(block) {
                    *half = Self::of(*number);
                }
                halves
            }
        }
    )*};
}

half!(F16, Bf16);

/// An [`F16`] that the processor's F16C instructions convert.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct F16c(u16);

/// # Safety
///
/// Use this type only in code that is compiled for a processor with F16C.
#[cfg(target_arch = "x86_64")]
impl Element for F16c {
    type Number = f32;
    const ZERO: Self = F16c(0);

    #[inline(always)]
    fn widen<const N: usize>(block: &[Self; N]) -> [f32; N] {
        let mut numbers = [0.0; N];
        for (numbers, halves) in numbers.chunks_exact_mut(8).zip(block.chunks_exact(8)) {
            // SAFETY: both chunks have eight values, and the processor has the instruction.
            unsafe {
                let halves = _mm_loadu_si128(halves.as_ptr().cast());
                _mm256_storeu_ps(numbers.as_mut_ptr(), _mm256_cvtph_ps(halves));
            }
        }
        numbers
    }

    #[inline(always)]
    fn narrow<const N: usize>(block: &[f32; N]) -> [Self; N] {
        let mut halves = [Self::ZERO; N];
        for (halves, numbers) in halves.chunks_exact_mut(8).zip(block.chunks_exact(8)) {
            // SAFETY: both chunks have eight values, and the processor has the instruction.
            unsafe {
                let numbers = _mm256_loadu_ps(numbers.as_ptr());
                let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers);
                _mm_storeu_si128(halves.as_mut_ptr().cast(), rounded);
            }
        }
        halves
    }
}
