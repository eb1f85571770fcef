//! Width and speed of a link, from the codes of `ibv_port_attr`.

use core::fmt;

/// Data rate of a link: `active_width` × `active_speed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    /// Number of parallel lanes.
    pub lanes: u32,
    /// Megabits per second of each lane, in the round numbers that NCCL uses.
    pub lane_mbps: u32,
    /// Name of the generation: `EDR`, `NDR`.
    pub speed_name: &'static str,
}

/// A port reports a code that no table contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownLinkCode {
    /// The field with the unknown code.
    pub field: LinkField,
    /// Value of the field.
    pub code: u32,
}

/// A field of `ibv_port_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkField {
    /// The field `active_width`.
    ActiveWidth,
    /// The field `active_speed`, or `active_speed_ex` if that is not 0. XDR does not fit into
    /// `active_speed`.
    ActiveSpeed,
}

/// Code and lanes (IBTA PortInfo LinkWidthActive).
const WIDTHS: [(u32, u32); 5] = [(1, 1), (2, 4), (4, 8), (8, 12), (16, 2)];

/// Code, Mb/s of a lane, name (IBTA PortInfo LinkSpeedActive, LinkSpeedExtActive). A lane of FDR10,
/// 10.3125 Gb/s, counts as 10.
const SPEEDS: [(u32, u32, &str); 9] = [
    (1, 2_500, "SDR"),
    (2, 5_000, "DDR"),
    (4, 10_000, "QDR"),
    (8, 10_000, "FDR10"),
    (16, 14_000, "FDR"),
    (32, 25_000, "EDR"),
    (64, 50_000, "HDR"),
    (128, 100_000, "NDR"),
    (256, 200_000, "XDR"),
];

impl LinkRate {
    /// Computes the rate from the codes of a port (`net_ib.cc ncclIbWidth`, `ncclIbSpeed`).
    ///
    /// For an unknown code NCCL takes the last entry of its table. Here an unknown code is an error, so
    /// that nobody plans with an invented speed.
    pub fn from_codes(active_width: u32, active_speed: u32) -> Result<LinkRate, UnknownLinkCode> {
        use LinkField::{ActiveSpeed, ActiveWidth};
        let unknown = |field, code| UnknownLinkCode { field, code };
        let &(_, lanes) = WIDTHS
            .iter()
            .find(|row| row.0 == active_width)
            .ok_or(unknown(ActiveWidth, active_width))?;
        let &(_, lane_mbps, speed_name) = SPEEDS
            .iter()
            .find(|row| row.0 == active_speed)
            .ok_or(unknown(ActiveSpeed, active_speed))?;
        Ok(LinkRate { lanes, lane_mbps, speed_name })
    }

    /// Megabits per second of all lanes together.
    pub fn mbps(&self) -> u32 {
        self.lanes * self.lane_mbps
    }
}

/// Writes the rate as people write it: `4x EDR`.
impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x {}", self.lanes, self.speed_name)
    }
}

impl fmt::Display for UnknownLinkCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            LinkField::ActiveWidth => {
                write!(f, "active_width {} is none of", self.code)?;
                WIDTHS.iter().try_for_each(|(code, lanes)| write!(f, " {code} ({lanes}x)"))
            }
            LinkField::ActiveSpeed => {
                write!(f, "active_speed {} is none of", self.code)?;
                SPEEDS.iter().try_for_each(|(code, _, name)| write!(f, " {code} ({name})"))
            }
        }
    }
}

impl core::error::Error for UnknownLinkCode {}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn known_links_have_the_speeds_that_nccl_gives_them() {
        let mbps = |width, speed| LinkRate::from_codes(width, speed).map(|rate| rate.mbps());
        assert_eq!(mbps(1, 1), Ok(2_500));
        assert_eq!(mbps(2, 4), Ok(40_000));
        assert_eq!(mbps(2, 8), Ok(40_000));
        assert_eq!(mbps(2, 16), Ok(56_000));
        assert_eq!(mbps(2, 32), Ok(100_000));
        assert_eq!(mbps(2, 64), Ok(200_000));
        assert_eq!(mbps(2, 128), Ok(400_000));
        assert_eq!(mbps(2, 256), Ok(800_000));
        assert_eq!(mbps(16, 64), Ok(100_000));
        assert_eq!(mbps(8, 256), Ok(2_400_000));
        assert_eq!(LinkRate::from_codes(4, 32).unwrap().to_string(), "8x EDR");
    }

    #[test]
    fn codes_that_no_table_has_are_named() {
        for width in [0, 3, 32, u32::MAX] {
            let error = LinkRate::from_codes(width, 1).unwrap_err();
            assert_eq!((error.field, error.code), (LinkField::ActiveWidth, width));
        }
        let error = LinkRate::from_codes(2, 512).unwrap_err().to_string();
        assert!(error.starts_with("active_speed 512 is none of 1 (SDR)"), "{error}");
        assert!(error.ends_with("256 (XDR)"), "{error}");
    }
}
