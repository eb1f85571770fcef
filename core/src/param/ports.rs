//! Which ports a listener may take.

use core::fmt;
use core::ops::RangeInclusive;

/// One port, a range of them, or any that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Any port that is free: the system picks it.
    pub const ANY: PortRange = PortRange::only(0);

    /// This port and no other; 0 is [`PortRange::ANY`].
    pub const fn only(port: u16) -> Self {
        PortRange { first: port, last: port }
    }

    /// From `PORT` or `FIRST-LAST`; `0` is [`PortRange::ANY`].
    pub fn parse(text: &str) -> Option<Self> {
        let Some((first, last)) = text.split_once('-') else {
            return Some(PortRange::only(number(text)?));
        };
        let (first, last) = (number(first)?, number(last)?);
        (1..=last).contains(&first).then_some(PortRange { first, last })
    }

    /// Whether the system picks the port.
    pub const fn is_any(self) -> bool {
        self.first == 0
    }

    /// The port, where there is only one to choose.
    pub const fn single(self) -> Option<u16> {
        if !self.is_any() && self.first == self.last { Some(self.first) } else { None }
    }

    /// The ports to try, in order: 0 alone where the system picks one.
    pub const fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

/// The format is that of [`PortRange::parse`].
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.first == self.last { Ok(()) } else { write!(f, "-{}", self.last) }
    }
}

/// Digits only: `u16::from_str` would take a sign.
fn number(text: &str) -> Option<u16> {
    text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn a_port_a_range_and_any_are_read_and_shown_alike() {
        for (text, ports) in
            [("0", 0..=0), ("4791", 4791..=4791), ("1-65535", 1..=65535), ("7-7", 7..=7)]
        {
            let range = PortRange::parse(text).unwrap();
            assert_eq!(range.ports(), ports, "{text}");
            assert_eq!(PortRange::parse(&range.to_string()), Some(range), "{text}");
        }
        assert!(PortRange::parse("0").unwrap().is_any());
        let single = |text| PortRange::parse(text).unwrap().single();
        assert_eq!(
            [single("0"), single("7"), single("7-7"), single("7-8")],
            [None, Some(7), Some(7), None]
        );
    }

    #[test]
    fn what_is_no_range_of_ports_is_refused() {
        for text in ["", "-", "-1", "1-", "0-7", "8-7", "65536", "1-65536", "+7", "7-+8", " 7", "a"]
        {
            assert_eq!(PortRange::parse(text), None, "{text:?}");
        }
    }
}
