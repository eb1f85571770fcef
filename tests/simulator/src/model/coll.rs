//! The definition of collectives. It has inputs that every data type holds exactly, and the output that
//! each rank must get.

use invar_core::coll::{Algorithm, DataType, ONE_SHOT_RANKS_MAX, Operation, RedOp};

use crate::random::Random;

/// Every operation among `nranks`, with each algorithm that exists for it and each root.
pub fn all(nranks: u32) -> Vec<(Operation, Algorithm)> {
    use Algorithm::{OneShot, Ring, Tree, TwoShot};
    let mut all = vec![
        (Operation::AllReduce, Ring),
        (Operation::AllReduce, Tree),
        (Operation::AllReduce, OneShot),
        (Operation::AllReduce, TwoShot),
        (Operation::AllGather, Ring),
        (Operation::AllGather, OneShot),
        (Operation::ReduceScatter, Ring),
        (Operation::ReduceScatter, OneShot),
        (Operation::AllToAll, Ring),
    ];
    for root in 0..nranks {
        for algorithm in [Ring, Tree, OneShot] {
            all.push((Operation::Broadcast { root }, algorithm));
            all.push((Operation::Reduce { root }, algorithm));
        }
    }
    all.retain(|(_, algorithm)| {
        nranks <= ONE_SHOT_RANKS_MAX || !matches!(algorithm, OneShot | TwoShot)
    });
    all
}

/// The positions of a rank's input and output within one memory, in elements. They may overlap.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The position of the input.
    pub input: usize,
    /// The length of the input.
    pub input_len: usize,
    /// The position of the output.
    pub output: usize,
    /// The length of the output.
    pub output_len: usize,
    /// The length of the whole memory.
    pub len: usize,
}

impl Layout {
    /// The layout for an operation of `count` elements at `rank` of `nranks`.
    ///
    /// # Panics
    /// Panics if there are more elements than memory can have.
    pub fn new(
        operation: Operation,
        count: usize,
        (rank, nranks): (u32, u32),
        in_place: bool,
    ) -> Self {
        let input_len =
            operation.input_count(count, rank, nranks).expect("no more than memory has");
        let output_len =
            operation.output_count(count, rank, nranks).expect("no more than memory has");
        let block = count * rank as usize;
        let (input, output, len) = match (in_place, operation) {
            (false, _) => (0, input_len, input_len + output_len),
            (true, Operation::AllGather) => (block, 0, output_len),
            (true, Operation::ReduceScatter) => (0, block, input_len),
            (true, _) => (0, 0, input_len.max(output_len)),
        };
        Layout { input, input_len, output, output_len, len }
    }
}

/// The input of `rank`: `len` small numbers. Among up to eight ranks, neither rounding nor the order of
/// a reduction makes a difference for any data type.
pub fn input(seed: u64, rank: u32, data_type: DataType, op: RedOp, len: usize) -> Vec<i64> {
    let mut random = Random::new(seed ^ (u64::from(rank) + 1) << 32);
    let signed = !matches!(data_type, DataType::U8 | DataType::U32 | DataType::U64);
    let value = || {
        let value = match op {
            RedOp::Prod => random.pick(&[1, -1, 2, -2]),
            _ => random.below(31) as i64 - 15,
        };
        if signed { value } else { value.abs() }
    };
    std::iter::repeat_with(value).take(len).collect()
}

/// The value that an output element must have. It is a fraction, which is a whole number except for
/// averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    numerator: i64,
    divisor: i64,
}

/// The output that `rank` must get for the inputs of all ranks. `None` stands for an element that keeps
/// its old value.
pub fn output(
    operation: Operation,
    op: RedOp,
    count: usize,
    rank: u32,
    inputs: &[Vec<i64>],
) -> Vec<Option<Expected>> {
    let reduced = |at: usize| {
        let numerator = reduce(op, inputs.iter().map(|input| input[at]));
        Expected { numerator, divisor: if op == RedOp::Avg { inputs.len() as i64 } else { 1 } }
    };
    let copied = |from: usize, at: usize| Expected { numerator: inputs[from][at], divisor: 1 };
    let block = count * rank as usize;
    let blocks = |block: usize| {
        let elements = (0..inputs.len()).flat_map(move |from| (0..count).map(move |at| (from, at)));
        elements.map(|(from, at)| copied(from, block + at)).map(Some).collect()
    };
    match operation {
        Operation::AllReduce => (0..count).map(|at| Some(reduced(at))).collect(),
        Operation::ReduceScatter => (0..count).map(|at| Some(reduced(block + at))).collect(),
        Operation::AllGather => blocks(0),
        Operation::AllToAll => blocks(block),
        Operation::Reduce { root } if root == rank => {
            (0..count).map(|at| Some(reduced(at))).collect()
        }
        Operation::Reduce { .. } => vec![None; count],
        Operation::Broadcast { root: from } | Operation::Recv { peer: from } => {
            (0..count).map(|at| Some(copied(from as usize, at))).collect()
        }
        Operation::Send { .. } => Vec::new(),
    }
}

fn reduce(op: RedOp, values: impl Iterator<Item = i64>) -> i64 {
    let fold = match op {
        RedOp::Sum | RedOp::Avg => |a, b| a + b,
        RedOp::Prod => |a, b| a * b,
        RedOp::Max => Ord::max,
        RedOp::Min => Ord::min,
    };
    values.reduce(fold).unwrap_or_default()
}

/// The bytes of an element in memory.
pub type Bytes = heapless::Vec<u8, 8>;

/// Encodes a number as bytes in memory, modulo the range of integer types.
pub fn encode(data_type: DataType, value: i64) -> Bytes {
    match data_type {
        DataType::I8 | DataType::U8 => (value as u8).to_ne_bytes().into(),
        DataType::I32 | DataType::U32 => (value as u32).to_ne_bytes().into(),
        DataType::I64 | DataType::U64 => value.to_ne_bytes().into(),
        DataType::F32 => (value as f32).to_ne_bytes().into(),
        DataType::F64 => (value as f64).to_ne_bytes().into(),
        DataType::F16 => f16_bits(value).to_ne_bytes().into(),
        DataType::Bf16 => (((value as f32).to_bits() >> 16) as u16).to_ne_bytes().into(),
    }
}

/// The bits of an f16 for a whole number of at most eleven bits.
fn f16_bits(value: i64) -> u16 {
    let sign = if value < 0 { 0x8000 } else { 0 };
    match value.unsigned_abs() {
        0 => sign,
        magnitude => {
            let exponent = magnitude.ilog2();
            let fraction = (magnitude << (10 - exponent)) & 0x3ff;
            sign | ((exponent as u16 + 15) << 10) | fraction as u16
        }
    }
}

impl Expected {
    /// Whether `found` holds this value. Averages of floats may be off by the rounding of intermediate
    /// results.
    pub fn is(self, data_type: DataType, found: &[u8]) -> bool {
        if self.divisor == 1 || !data_type.is_float() {
            return found == encode(data_type, self.numerator / self.divisor);
        }
        let (value, fraction_bits) = match data_type {
            DataType::F64 => (f64::from_ne_bytes(found.try_into().expect("eight bytes")), 52),
            DataType::F32 => (f32::from_ne_bytes(found.try_into().expect("four bytes")).into(), 23),
            half => {
                let bits = u16::from_ne_bytes(found.try_into().expect("two bytes"));
                (half_value(half, bits), if half == DataType::F16 { 10 } else { 7 })
            }
        };
        let exact = self.numerator as f64 / self.divisor as f64;
        // A term is below 16 / ranks and a sum is below 16. Each operation rounds by half a unit in the
        // last place, and so by less than half a unit of 16.
        (value - exact).abs() < self.divisor as f64 * 16.0 * 2f64.powi(-1 - fraction_bits)
    }
}

fn half_value(data_type: DataType, bits: u16) -> f64 {
    if data_type == DataType::Bf16 {
        return f32::from_bits(u32::from(bits) << 16).into();
    }
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_exact_in_every_type_and_others_within_what_is_rounded() {
        for data_type in DataType::ALL {
            for numerator in 0..=120 {
                let whole = Expected { numerator, divisor: 1 };
                assert!(whole.is(data_type, &encode(data_type, numerator)));
                assert!(!whole.is(data_type, &encode(data_type, numerator + 1)));
            }
            let quarter = Expected { numerator: 9, divisor: 4 };
            assert!(!quarter.is(data_type, &encode(data_type, 9)));
            assert_eq!(quarter.is(data_type, &encode(data_type, 2)), !data_type.is_float());
        }
        // The value is 2.25.
        let quarter = Expected { numerator: 9, divisor: 4 };
        assert!(quarter.is(DataType::F16, &0x4080_u16.to_ne_bytes()));
        assert!(quarter.is(DataType::Bf16, &0x4010_u16.to_ne_bytes()));
        assert!(!quarter.is(DataType::F16, &0x40c0_u16.to_ne_bytes()));
    }
}
