//! Types of elements.

use invar::DataType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// The type of the elements of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementType {
    Number(DataType),
    /// Bytes that are 0 or 1.
    Bool,
    /// Elements of another type, which collectives carry and don't reduce.
    Opaque,
}

impl ElementType {
    /// The type as which collectives carry the elements.
    pub(crate) fn data_type(self) -> DataType {
        match self {
            ElementType::Number(data_type) => data_type,
            ElementType::Bool | ElementType::Opaque => DataType::U8,
        }
    }

    /// The type with a name of NumPy's, or [`ElementType::Opaque`] for all others.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "bool" => ElementType::Bool,
            "int8" => ElementType::Number(DataType::I8),
            "uint8" => ElementType::Number(DataType::U8),
            "int32" => ElementType::Number(DataType::I32),
            "uint32" => ElementType::Number(DataType::U32),
            "int64" => ElementType::Number(DataType::I64),
            "uint64" => ElementType::Number(DataType::U64),
            "float16" => ElementType::Number(DataType::F16),
            "bfloat16" => ElementType::Number(DataType::Bf16),
            "float32" => ElementType::Number(DataType::F32),
            "float64" => ElementType::Number(DataType::F64),
            _ => ElementType::Opaque,
        }
    }

    /// The type of a number, or [`ElementType::Opaque`] if collectives do not reduce such numbers.
    pub(crate) fn number(is_float: bool, is_signed: bool, bytes: usize) -> Self {
        let number = match (is_float, is_signed, bytes) {
            (true, _, 2) => DataType::F16,
            (true, _, 4) => DataType::F32,
            (true, _, 8) => DataType::F64,
            (false, true, 1) => DataType::I8,
            (false, true, 4) => DataType::I32,
            (false, true, 8) => DataType::I64,
            (false, false, 1) => DataType::U8,
            (false, false, 4) => DataType::U32,
            (false, false, 8) => DataType::U64,
            _ => return ElementType::Opaque,
        };
        ElementType::Number(number)
    }
}

/// The type in a format of the module `struct`.
pub(crate) fn element_of(format: &[u8], bytes: usize) -> PyResult<ElementType> {
    // Names of fields stand between colons.
    let mut types = format.split(|byte| *byte == b':').step_by(2).flatten();
    if types.any(|code| matches!(code, b'O' | b'P' | b'&' | b'X')) {
        let text =
            "the elements are objects of Python or pointers, which mean nothing in another process";
        return Err(PyTypeError::new_err(text));
    }
    let foreign: u8 = if cfg!(target_endian = "little") { b'>' } else { b'<' };
    let code = match format {
        [order, code] if *order == foreign || (*order == b'!' && foreign == b'>') => {
            if bytes > 1 {
                let text = "the elements have the byte order of other processors: convert them";
                return Err(PyTypeError::new_err(text));
            }
            *code
        }
        [b'@' | b'=' | b'<' | b'>' | b'!', code] | [code] => *code,
        // A structure, a complex number, or several numbers.
        _ => return Ok(ElementType::Opaque),
    };
    Ok(match code {
        b'?' => ElementType::Bool,
        b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => ElementType::number(false, true, bytes),
        b'c' | b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => ElementType::number(false, false, bytes),
        b'e' | b'f' | b'd' => ElementType::number(true, true, bytes),
        _ => ElementType::Opaque,
    })
}
