//! Types of elements, and reductions.

use core::fmt;
use core::str::FromStr;

/// The type of an element (`ncclDataType_t`, with its codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DataType {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    /// IEEE 754 binary16.
    F16 = 6,
    F32 = 7,
    F64 = 8,
    /// The upper half of an `f32`.
    Bf16 = 9,
}

impl DataType {
    /// All types, in the order of their codes.
    pub const ALL: [DataType; 10] = [
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::Bf16,
    ];

    /// Returns the number of bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 => 1,
            DataType::F16 | DataType::Bf16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }

    /// Returns whether the type has fractions. For an average of floats, the ranks divide the inputs
    /// before they add them, so that the sum does not overflow. For an average of integers, the ranks
    /// divide the sum.
    pub const fn is_float(self) -> bool {
        matches!(self, DataType::F16 | DataType::F32 | DataType::F64 | DataType::Bf16)
    }

    /// Returns the type's name as nccl-tests prints it.
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// Returns all names that are read.
    const fn names(self) -> [&'static str; 2] {
        match self {
            DataType::I8 => ["int8", "i8"],
            DataType::U8 => ["uint8", "u8"],
            DataType::I32 => ["int32", "i32"],
            DataType::U32 => ["uint32", "u32"],
            DataType::I64 => ["int64", "i64"],
            DataType::U64 => ["uint64", "u64"],
            DataType::F16 => ["half", "f16"],
            DataType::F32 => ["float", "f32"],
            DataType::F64 => ["double", "f64"],
            DataType::Bf16 => ["bfloat16", "bf16"],
        }
    }
}

/// A reduction of the elements of all ranks to one (`ncclRedOp_t`, with its codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RedOp {
    /// The sum; for integers, modulo their range.
    Sum = 0,
    /// The product; for integers, modulo their range.
    Prod = 1,
    /// The maximum. Any number wins against NaN.
    Max = 2,
    /// The minimum. Any number wins against NaN.
    Min = 3,
    /// The sum divided by the number of ranks; for integers, rounded towards zero.
    Avg = 4,
}

impl RedOp {
    /// All reductions, in the order of their codes.
    pub const ALL: [RedOp; 5] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg];

    /// Returns the reduction's name as nccl-tests prints it.
    pub const fn name(self) -> &'static str {
        match self {
            RedOp::Sum => "sum",
            RedOp::Prod => "prod",
            RedOp::Max => "max",
            RedOp::Min => "min",
            RedOp::Avg => "avg",
        }
    }
}

/// The reason why a name can't be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// No data type has this name.
    #[error(
        "no such type: known are int8, uint8, int32, uint32, int64, uint64, half, float, double, \
         bfloat16, and i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16 for the same"
    )]
    DataType,
    /// No reduction has this name.
    #[error("no such reduction: known are sum, prod, max, min, avg")]
    RedOp,
}

impl FromStr for DataType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::ALL
            .into_iter()
            .find(|known| known.names().contains(&text))
            .ok_or(ParseError::DataType)
    }
}

impl FromStr for RedOp {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::ALL.into_iter().find(|known| text == known.name()).ok_or(ParseError::RedOp)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for RedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn codes_are_places_among_all_and_names_are_read_back() {
        for (code, data_type) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(data_type as usize, code);
            assert_eq!(data_type.to_string().parse(), Ok(data_type));
            assert_eq!(data_type.names()[1].parse(), Ok(data_type));
        }
        for (code, op) in RedOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, code);
            assert_eq!(op.to_string().parse(), Ok(op));
        }
        assert_eq!("f8".parse::<DataType>(), Err(ParseError::DataType));
        assert_eq!("SUM".parse::<RedOp>(), Err(ParseError::RedOp));
    }
}
