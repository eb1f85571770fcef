//! Message sizes, in the form that people write.

use crate::failure::Failure;

/// The longest message: a slot of the protocol has 31 bits for the size.
pub(crate) const MESSAGE_BYTES_MAX: u32 = i32::MAX as u32;

/// The largest amount of memory.
const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// The flags that choose the sizes to measure.
#[derive(clap::Args)]
pub(crate) struct Sizes {
    /// Smallest size
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse, default_value = "8")]
    pub(crate) min_bytes: u32,

    /// Largest size
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse, default_value = "64M")]
    pub(crate) max_bytes: u32,

    /// Factor from one size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) factor: u32,
}

impl Sizes {
    /// Refuses flags that leave no size.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Sizes { min_bytes, max_bytes, .. } = self;
        if min_bytes > max_bytes {
            let text = format!("--min-bytes {min_bytes} is more than --max-bytes {max_bytes}");
            return Err(Failure::usage(text));
        }
        Ok(())
    }

    /// The sizes to measure.
    pub(crate) fn series(&self) -> Vec<u32> {
        series(self.min_bytes, self.max_bytes, self.factor)
    }
}

/// Parses the size of a message.
fn parse(text: &str) -> Result<u32, String> {
    up_to(MESSAGE_BYTES_MAX.into(), text).map(|bytes| bytes as u32)
}

/// Parses an amount of memory.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    up_to(MEMORY_BYTES_MAX, text)
}

/// Parses `8`, `64K`, `1MiB`, `2g`: binary multiples, up to `max`.
fn up_to(max: u64, text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "must be a number of bytes from 0 to {max}, where K, M and G stand for 2^10, 2^20 and \
             2^30"
        )
    };
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= max).ok_or_else(wrong)
}

/// Writes a size in the largest unit that leaves a whole number: `64 MiB`, `1000 B`.
pub(crate) fn show(bytes: u32) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(whole) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

/// The sizes from `min` to `max`, each `factor` times the last; 1 follows 0.
fn series(min: u32, max: u32, factor: u32) -> Vec<u32> {
    let next = |&size: &u32| size.checked_mul(factor).map(|next| next.max(1));
    std::iter::successors(Some(min), next).take_while(|size| *size <= max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_goes_by_the_factor_and_begins_with_0_if_asked() {
        assert_eq!(series(8, 64, 2), [8, 16, 32, 64]);
        assert_eq!(series(0, 5, 2), [0, 1, 2, 4]);
        assert_eq!(series(7, 7, 9), [7]);
        assert_eq!(series(1 << 30, i32::MAX as u32, 2), [1 << 30]);
        assert_eq!(series(0, 0, 2), [0]);
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("8b", 8),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("1MiB", 1 << 20),
            ("64MB", 64 << 20),
            ("1G", 1 << 30),
            ("2147483647", MESSAGE_BYTES_MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_what_is_allowed() {
        for text in ["", "K", "-1", "1.5M", "8 K", "8T", "2G", "2147483648", "99999999999999999G"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("from 0 to 2147483647"), "{text}: {error}");
        }
        assert_eq!(memory("1024G"), Ok(MEMORY_BYTES_MAX));
        assert!(memory("1025G").is_err());
    }

    #[test]
    fn sizes_are_shown_in_the_largest_whole_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (8, "8 B"),
            (1024, "1 KiB"),
            (1536, "1536 B"),
            (64 << 20, "64 MiB"),
            (1 << 30, "1 GiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
