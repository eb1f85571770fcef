//! From text to a value, and what text is allowed.

use core::fmt;

use super::{PortRange, Subnet};
use crate::device::NameFilter;
use crate::stall::FlightRecorder;

/// The values that may be written. Displays as the end of "must be …".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "`min` and `max` are both allowed; `auto` is beside them")]
pub enum Allowed {
    /// A number from `min` to `max`.
    Integer { min: i64, max: i64 },
    /// A number, or the one that leaves the choice to the program.
    AutoOrInteger { auto: i64, min: i64, max: i64 },
    /// A power of two.
    PowerOfTwo { min: i64, max: i64 },
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of devices and ports for [`NameFilter`].
    Names,
    /// A list of interfaces for [`NameFilter`]. They have no ports.
    Interfaces,
    /// Subsystems of the log.
    Subsystems,
    /// Names with commas between them.
    Devices,
    /// A [`Subnet`], or nothing.
    Subnet,
    /// A range of ports for [`PortRange`].
    Ports,
    /// A path from the root.
    Path,
    /// A word that the host knows.
    Name,
    /// A [`MetricsPlace`](super::MetricsPlace), or nothing.
    Metrics,
    /// Any text, which nothing may print.
    Secret,
}

impl Allowed {
    fn allows(&self, number: i64) -> bool {
        match *self {
            Allowed::Integer { min, max } | Allowed::AutoOrInteger { min, max, .. } => {
                (min..=max).contains(&number)
            }
            Allowed::PowerOfTwo { min, max } => {
                (min..=max).contains(&number) && number.count_ones() == 1
            }
            Allowed::OneOf(_)
            | Allowed::Names
            | Allowed::Interfaces
            | Allowed::Subsystems
            | Allowed::Devices
            | Allowed::Subnet
            | Allowed::Ports
            | Allowed::Path
            | Allowed::Name
            | Allowed::Metrics
            | Allowed::Secret => false,
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Integer { min, max } => write!(f, "a number from {min} to {max}"),
            Allowed::AutoOrInteger { auto, min, max } => {
                write!(f, "a number from {min} to {max}, or {auto} (automatic)")
            }
            Allowed::PowerOfTwo { min, max } => {
                write!(f, "a power of two from {min} to {max}")
            }
            Allowed::OneOf(words) => {
                f.write_str("one of")?;
                words.iter().try_for_each(|word| write!(f, " {word}"))
            }
            Allowed::Names => f.write_str(
                "a list like a,b:1 (a:PORT:RAIL:PLANE; ^a,b for all but these; =a for exact names)",
            ),
            Allowed::Interfaces => {
                f.write_str("a list like eth0,eth1 (^a,b for all but these; =a for exact names)")
            }
            Allowed::Subsystems => f.write_str("a list like INIT,NET (^INIT,NET for all but these)"),
            Allowed::Devices => f.write_str("a list like a,b"),
            Allowed::Subnet => f.write_str("a subnet like 10.0.0.0/8 or fd00::/8"),
            Allowed::Ports => {
                f.write_str("a port, a range like 20000-20100, or 0 (any that is free)")
            }
            Allowed::Path => f.write_str("a path that begins with /"),
            Allowed::Name => f.write_str("a name without spaces"),
            Allowed::Metrics => f.write_str(
                "127.0.0.1:PORT or another loopback address, unix:PATH or file:PATH with a path that \
                 begins with /",
            ),
            Allowed::Secret => f.write_str("any text"),
        }
    }
}

/// A type of parameter.
pub(super) trait Value<'a>: Sized {
    /// `None` when the text is not allowed.
    fn from_text(text: &'a str, allowed: &Allowed) -> Option<Self>;
}

/// Types that a number from [`Allowed`] becomes.
trait Number: TryFrom<i64> {}
impl Number for u8 {}
impl Number for u16 {}
impl Number for u32 {}
impl Number for u64 {}

impl<T: Number> Value<'_> for T {
    fn from_text(text: &str, allowed: &Allowed) -> Option<Self> {
        let number = parse_integer(text).filter(|number| allowed.allows(*number))?;
        T::try_from(number).ok()
    }
}

impl Value<'_> for bool {
    fn from_text(text: &str, allowed: &Allowed) -> Option<Self> {
        u8::from_text(text, allowed).map(|number| number != 0)
    }
}

impl Value<'_> for FlightRecorder {
    fn from_text(text: &str, allowed: &Allowed) -> Option<Self> {
        match u8::from_text(text, allowed)? {
            0 => Some(FlightRecorder::Off),
            1 => Some(FlightRecorder::Events),
            2 => Some(FlightRecorder::Messages),
            _ => None,
        }
    }
}

/// `None` stands for "automatic".
impl<'a, T: Value<'a>> Value<'a> for Option<T> {
    fn from_text(text: &'a str, allowed: &Allowed) -> Option<Self> {
        let is_auto = match *allowed {
            Allowed::AutoOrInteger { auto, .. } => parse_integer(text) == Some(auto),
            _ => text.is_empty(),
        };
        if is_auto { Some(None) } else { T::from_text(text, allowed).map(Some) }
    }
}

impl<'a> Value<'a> for NameFilter<'a> {
    fn from_text(text: &'a str, _: &Allowed) -> Option<Self> {
        NameFilter::parse(text).ok()
    }
}

impl Value<'_> for Subnet {
    fn from_text(text: &str, _: &Allowed) -> Option<Self> {
        Subnet::parse(text)
    }
}

impl Value<'_> for PortRange {
    fn from_text(text: &str, _: &Allowed) -> Option<Self> {
        PortRange::parse(text)
    }
}

impl<'a> Value<'a> for &'a str {
    fn from_text(text: &'a str, allowed: &Allowed) -> Option<Self> {
        let is_allowed = match allowed {
            Allowed::Path => text.starts_with('/'),
            Allowed::Secret | Allowed::Names | Allowed::Devices | Allowed::Subsystems => {
                !text.is_empty()
            }
            _ => !text.is_empty() && !text.contains(char::is_whitespace),
        };
        is_allowed.then_some(text)
    }
}

/// Parses an integer by the rules of `strtoll` with base 0. The whole text must be the number.
pub(super) fn parse_integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` would take a second sign.
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    (if negative { -number } else { number }).try_into().ok()
}
