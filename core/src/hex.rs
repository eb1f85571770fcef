//! Bytes as text, two hexadecimal digits each.

use core::fmt;

/// Shows bytes as digits.
#[derive(Clone, Copy, Debug)]
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads `N` bytes from their digits. Returns `None` for anything else, such as signs or spaces.
pub fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    fill(text, &mut bytes).map(|()| bytes)
}

/// Fills `bytes` from their digits, as [`parse`] does.
pub fn fill(text: &str, bytes: &mut [u8]) -> Option<()> {
    let digit = |text: u8| char::from(text).to_digit(16);
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn bytes_survive_and_nothing_but_their_digits_is_taken() {
        let bytes = [0, 1, 0x7f, 0xff];
        let text = Hex(&bytes).to_string();
        assert_eq!((text.as_str(), parse(&text)), ("00017fff", Some(bytes)));
        assert_eq!(parse("00017FFF"), Some(bytes));
        for other in ["", "0", "0001", "+1+1+1+1", "00 17fff", "0001 7fff", "ä0017ff"] {
            assert_eq!(parse::<4>(other), None, "{other}");
        }
    }
}
