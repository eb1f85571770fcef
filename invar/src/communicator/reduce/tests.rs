use super::element::{Bf16, F16};
use super::kernel::Instructions;
use super::*;

/// A cheap, deterministic sequence of bits.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Reduces one element by plain arithmetic in a type that rounds nothing.
fn one(data_type: DataType, op: RedOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! integer {
        ($int:ty) => {{
            let read = |bytes: &[u8]| <$int>::from_ne_bytes(bytes.try_into().unwrap());
            let (a, b) = (i128::from(read(a)), i128::from(read(b)));
            let value = match op {
                RedOp::Sum | RedOp::Avg => a + b,
                RedOp::Prod => a.wrapping_mul(b),
                RedOp::Max => a.max(b),
                RedOp::Min => a.min(b),
            };
            (value as $int).to_ne_bytes().to_vec()
        }};
    }
    match data_type {
        DataType::I8 => integer!(i8),
        DataType::U8 => integer!(u8),
        DataType::I32 => integer!(i32),
        DataType::U32 => integer!(u32),
        DataType::I64 => integer!(i64),
        DataType::U64 => integer!(u64),
        DataType::F64 => {
            let read = |bytes: &[u8]| f64::from_ne_bytes(bytes.try_into().unwrap());
            float(op, read(a), read(b)).to_ne_bytes().to_vec()
        }
        DataType::F32 => {
            let read = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
            // A double holds sums and products of floats precisely enough to round them correctly.
            (float(op, read(a).into(), read(b).into()) as f32).to_ne_bytes().to_vec()
        }
        DataType::F16 | DataType::Bf16 => {
            let read = |bytes: &[u8]| u16::from_ne_bytes(bytes.try_into().unwrap());
            let value = float(op, half_value(data_type, read(a)), half_value(data_type, read(b)));
            half_nearest(data_type, value).to_ne_bytes().to_vec()
        }
    }
}

fn float(op: RedOp, a: f64, b: f64) -> f64 {
    match op {
        RedOp::Sum | RedOp::Avg => a + b,
        RedOp::Prod => a * b,
        RedOp::Max if a.is_nan() || b > a => b,
        RedOp::Min if a.is_nan() || b < a => b,
        RedOp::Max | RedOp::Min => a,
    }
}

fn exponent_bits(data_type: DataType) -> u32 {
    if data_type == DataType::F16 { 5 } else { 8 }
}

/// Returns the value by the definition of the format.
fn half_value(data_type: DataType, bits: u16) -> f64 {
    let fraction_bits = 15 - exponent_bits(data_type) as i32;
    let bias = (1 << (exponent_bits(data_type) - 1)) - 1;
    let exponent = i32::from(bits & 0x7fff) >> fraction_bits;
    let fraction = f64::from(i32::from(bits) & ((1 << fraction_bits) - 1));
    let unit = 2f64.powi(exponent.max(1) - bias - fraction_bits);
    let magnitude = match exponent {
        0 => fraction * unit,
        e if e == 2 * bias + 1 && fraction == 0.0 => f64::INFINITY,
        e if e == 2 * bias + 1 => f64::NAN,
        _ => (fraction + 2f64.powi(fraction_bits)) * unit,
    };
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

/// Finds the nearest value by search; of two equally near values, the even one. A value that exceeds
/// the greatest by half a unit or more becomes infinity, which takes the place of the next number.
fn half_nearest(data_type: DataType, value: f64) -> u16 {
    let infinity = ((1u16 << exponent_bits(data_type)) - 1) << (15 - exponent_bits(data_type));
    if value.is_nan() {
        return 0x7fff;
    }
    let magnitude_of = |bits: u16| match bits == infinity {
        true => 2.0 * half_value(data_type, infinity - 1) - half_value(data_type, infinity - 2),
        false => half_value(data_type, bits),
    };
    let magnitude = value.abs();
    // The search finds the last value that is not above `value`.
    let (mut below, mut above) = (0, infinity + 1);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        let half = if magnitude_of(middle) <= magnitude { &mut below } else { &mut above };
        *half = middle;
    }
    let nearest = match below {
        last if last == infinity => infinity,
        _ => {
            let (down, up) = (magnitude - magnitude_of(below), magnitude_of(below + 1) - magnitude);
            if down < up || down == up && below % 2 == 0 { below } else { below + 1 }
        }
    };
    nearest | if value.is_sign_negative() { 0x8000 } else { 0 }
}

fn is_nan(data_type: DataType, bytes: &[u8]) -> bool {
    match data_type {
        DataType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DataType::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DataType::F16 | DataType::Bf16 => {
            half_value(data_type, u16::from_ne_bytes(bytes.try_into().unwrap())).is_nan()
        }
        _ => false,
    }
}

fn assert_elements(data_type: DataType, found: &[u8], expected: &[u8], what: &str) {
    let bytes = data_type.bytes();
    for (at, (found, expected)) in found.chunks(bytes).zip(expected.chunks(bytes)).enumerate() {
        let same = found == expected || is_nan(data_type, found) && is_nan(data_type, expected);
        assert!(same, "{data_type} {what}, element {at}: {found:x?} instead of {expected:x?}");
    }
}

fn reduce_each(data_type: DataType, op: RedOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    let bytes = data_type.bytes();
    a.chunks(bytes).zip(b.chunks(bytes)).flat_map(|(a, b)| one(data_type, op, a, b)).collect()
}

/// The byte value beside the elements of a destination.
const GUARD: u8 = 0xa5;
const GUARDS: usize = 64;

/// A destination at an odd address, with guard bytes on both sides.
struct Destination {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Destination {
    fn new(misaligned: usize, len: usize) -> Self {
        let at = GUARDS + misaligned;
        Destination { bytes: vec![GUARD; at + len + GUARDS], at, len }
    }

    fn ptr(&mut self) -> *mut u8 {
        self.bytes[self.at..].as_mut_ptr()
    }

    fn checked(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.at);
        let (elements, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|byte| *byte == GUARD), "written beside the end");
        elements
    }
}

fn run(
    reducer: &Reducer,
    operands: &[&[u8]],
    input: Option<usize>,
    destinations: &mut [Destination],
    finish: bool,
) {
    let operands: Vec<*const u8> = operands.iter().map(|operand| operand.as_ptr()).collect();
    let count = destinations[0].len / reducer.element_bytes;
    let destinations: Vec<*mut u8> = destinations.iter_mut().map(Destination::ptr).collect();
    // SAFETY: operands and destinations have `count` elements and do not overlap.
    unsafe { reducer.run(&operands, input, &destinations, count, finish) };
}

#[test]
fn every_length_at_any_alignment_is_reduced_as_by_plain_arithmetic() {
    let mut bits = Bits(0x1234_5678_9abc_def1);
    for data_type in DataType::ALL {
        for op in [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min] {
            let reducer = Reducer::new(data_type, op, 2);
            for count in (0..=67).chain([127, 128, 129, 200, 300]) {
                let len = count * data_type.bytes();
                let (a, b) = (bits.bytes(len + 1), bits.bytes(len + 3));
                let (a, b) = (&a[1..], &b[3..]);
                let expected = reduce_each(data_type, op, a, b);
                let mut to = [Destination::new(count % 9, len), Destination::new(count % 7, len)];
                let what = format!("{op} of {count}");
                run(&reducer, &[a, b], Some(1), &mut to[..1], true);
                assert_elements(data_type, to[0].checked(), &expected, &what);
                to[0] = Destination::new(count % 5, len);
                run(&reducer, &[a, b], Some(0), &mut to, false);
                assert_elements(data_type, to[0].checked(), &expected, &what);
                assert_eq!(to[0].checked(), to[1].checked());
            }
        }
    }
}

#[test]
fn all_instruction_sets_of_this_processor_agree_to_the_bit() {
    let mut bits = Bits(0xfeed_0bad_cafe_0001);
    for data_type in DataType::ALL {
        for op in RedOp::ALL {
            let (a, b) =
                (bits.bytes(1000 * data_type.bytes()), bits.bytes(1000 * data_type.bytes()));
            let results: Vec<Vec<u8>> = Instructions::present()
                .map(|instructions| {
                    let kernels = Kernels::with(instructions, data_type, op);
                    let mut to = vec![0; a.len()];
                    // SAFETY: all buffers have 1000 elements and do not overlap.
                    unsafe { (kernels.fold)(a.as_ptr(), b.as_ptr(), to.as_mut_ptr(), 1000) };
                    let mut divided = vec![0; a.len()];
                    // SAFETY: all buffers have 1000 elements and do not overlap.
                    unsafe { (kernels.divide)(to.as_ptr(), divided.as_mut_ptr(), 1000, 7) };
                    [to, divided].concat()
                })
                .collect();
            for result in &results {
                assert_elements(data_type, result, &results[0], op.name());
            }
        }
    }
}

#[test]
fn every_half_is_read_and_rounded_by_the_definition_of_its_format() {
    for bits in 0..=u16::MAX {
        for (data_type, number) in
            [(DataType::F16, F16(bits).number()), (DataType::Bf16, Bf16(bits).number())]
        {
            let value = half_value(data_type, bits);
            assert!(f64::from(number) == value || number.is_nan() && value.is_nan(), "{bits:#x}");
            assert!(value.is_nan() || number.is_sign_negative() == value.is_sign_negative());
            if value.is_nan() {
                continue;
            }
            // The test checks the number itself, its neighbours, and the values halfway to the next
            // number.
            let half_step = (f32::from_bits(number.to_bits() + 0x1000), 0x8000);
            for near in [
                number,
                f32::from_bits(number.to_bits() ^ 1),
                half_step.0,
                f32::from_bits(half_step.0.to_bits() ^ 1),
                f32::from_bits(half_step.0.to_bits().wrapping_sub(1)),
                f32::from_bits(number.to_bits() + half_step.1),
                f32::from_bits(number.to_bits() + half_step.1 - 1),
                f32::from_bits(number.to_bits() + half_step.1 + 1),
            ] {
                let found = match data_type {
                    DataType::F16 => F16::of(near).0,
                    _ => Bf16::of(near).0,
                };
                let expected = half_nearest(data_type, near.into());
                let both_nan = near.is_nan() && half_value(data_type, found).is_nan();
                assert!(found == expected || both_nan, "{near:e}: {found:#x}, not {expected:#x}");
            }
        }
    }
}

#[test]
fn many_operands_are_reduced_in_their_order_for_many_destinations() {
    let mut bits = Bits(0x0dd_c0ffee);
    for count in [1, 100, 5000] {
        let operands: Vec<Vec<u8>> = (0..5).map(|_| bits.bytes(count * 4)).collect();
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        let expected = operands[1..].iter().fold(operands[0].to_vec(), |sum, operand| {
            reduce_each(DataType::F32, RedOp::Sum, &sum, operand)
        });
        let mut to: Vec<Destination> = (0..4).map(|at| Destination::new(at, count * 4)).collect();
        run(&Reducer::new(DataType::F32, RedOp::Sum, 5), &operands, Some(2), &mut to, true);
        for to in &to {
            assert_elements(DataType::F32, to.checked(), &expected, "sum of five");
        }
    }
}

#[test]
fn a_destination_may_be_any_of_the_operands() {
    let mut bits = Bits(0xa11a5);
    for operands in 1..5 {
        for place in 0..operands {
            let mut data: Vec<Vec<u8>> = (0..operands).map(|_| bits.bytes(3000 * 4)).collect();
            let expected = data[1..].iter().fold(data[0].clone(), |sum, operand| {
                reduce_each(DataType::U32, RedOp::Sum, &sum, operand)
            });
            let pointers: Vec<*mut u8> = data.iter_mut().map(|data| data.as_mut_ptr()).collect();
            let sources: Vec<*const u8> = pointers.iter().map(|data| data.cast_const()).collect();
            let reducer = Reducer::new(DataType::U32, RedOp::Sum, operands);
            // SAFETY: all buffers have 3000 elements; the destination is one of the operands.
            unsafe { reducer.run(&sources, None, &[pointers[place as usize]], 3000, true) };
            assert_eq!(data[place as usize], expected, "operand {place} of {operands}");
        }
    }
}

#[test]
fn averages_divide_inputs_of_floats_and_sums_of_integers() {
    fn average<T: Copy>(data_type: DataType, operands: [T; 2], input: usize, finish: bool) -> T {
        let mut to = operands[0];
        let sources = operands.each_ref().map(|operand| ptr::from_ref(operand).cast());
        // SAFETY: all buffers have one element.
        unsafe {
            Reducer::new(data_type, RedOp::Avg, 4).run(
                &sources,
                Some(input),
                &[ptr::from_mut(&mut to).cast()],
                1,
                finish,
            );
        }
        to
    }
    assert_eq!(average(DataType::F32, [3.0f32, 10.0], 1, true), 5.5);
    assert_eq!(average(DataType::F64, [8.0f64, 3.0], 0, false), 5.0);
    // Three shares of 60 000 and a fourth input: no half can hold the sum of all four.
    let [shares, input] = [45_000.0, 60_000.0].map(|value| F16::of(value).0);
    assert_eq!(average(DataType::F16, [shares, input], 1, true), input);
    assert_eq!(average(DataType::I8, [-5i8, -6], 0, true), -2);
    assert_eq!(average(DataType::I8, [-5i8, -6], 0, false), -11);
    assert_eq!(average(DataType::U64, [u64::MAX, 0], 1, true), u64::MAX / 4);
    assert_eq!(average(DataType::I32, [i32::MIN, 1], 1, true), (i32::MIN + 1) / 4);
}

#[test]
fn averages_of_integers_are_rounded_towards_zero() {
    use super::element::Number;

    let counts = (1..=300).chain([1 << 16, (1 << 24) + 1, (1 << 31) - 1]);
    for nranks in counts {
        for a in 0..=u8::MAX {
            assert_eq!(u32::from(a.divide(nranks)), u32::from(a) / nranks, "{a} / {nranks}");
            let (a, wide) = (a as i8, i64::from(a as i8));
            assert_eq!(i64::from(a.divide(nranks)), wide / i64::from(nranks), "{a} / {nranks}");
        }
        // At these values a quotient has just changed.
        for a in [u32::MAX, i32::MAX as u32, 1 << 31, 12_345_679] {
            let exact = a - a % nranks;
            for a in [a, exact, exact.wrapping_sub(1), exact.wrapping_add(1)] {
                assert_eq!(a.divide(nranks), a / nranks, "{a} / {nranks}");
                let a = a as i32;
                let quotient = i64::from(a) / i64::from(nranks);
                assert_eq!(i64::from(a.divide(nranks)), quotient, "{a} / {nranks}");
            }
        }
    }
}

#[test]
fn a_copy_goes_to_each_destination_and_leaves_the_operand_be() {
    let bytes = Bits(7).bytes(999);
    let mut to = [Destination::new(1, 999), Destination::new(2, 999), Destination::new(3, 999)];
    run(&Reducer::copy(DataType::U8), &[&bytes], Some(0), &mut to, true);
    assert!(to.iter().all(|to| to.checked() == bytes));
    // A single rank has the average already.
    let mut to = [Destination::new(0, 996)];
    run(&Reducer::new(DataType::I32, RedOp::Avg, 1), &[&bytes[..996]], Some(0), &mut to, true);
    assert_eq!(to[0].checked(), &bytes[..996]);
}
