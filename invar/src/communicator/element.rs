//! Types of the values that collectives carry.

use half::{bf16, f16};
use invar_core::coll::DataType;

/// A type of element: `i8`, `u8`, `i32`, `u32`, `i64`, `u64`, `f32`, `f64`, and `f16` and `bf16` of
/// the crate `half`.
///
/// # Safety
///
/// The type has the layout that [`DATA_TYPE`](Element::DATA_TYPE) says, and every bit pattern is a
/// valid value.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The data type of the elements.
    const DATA_TYPE: DataType;
    /// The value zero.
    const ZERO: Self;
}

macro_rules! elements {
    ($($element:ty: $data_type:ident = $zero:expr),+) => {$(
        // SAFETY: the type is a number of that many bytes, and every bit pattern is a valid value.
        unsafe impl Element for $element {
            const DATA_TYPE: DataType = DataType::$data_type;
            const ZERO: Self = $zero;
        }
        const _: () = assert!(DataType::$data_type.bytes() == size_of::<$element>());
    )+};
}

elements!(i8: I8 = 0, u8: U8 = 0, i32: I32 = 0, u32: U32 = 0, i64: I64 = 0, u64: U64 = 0);
elements!(f16: F16 = f16::ZERO, bf16: Bf16 = bf16::ZERO, f32: F32 = 0.0, f64: F64 = 0.0);
