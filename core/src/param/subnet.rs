//! Subnets.

use core::fmt;
use core::net::IpAddr;

/// An address range in CIDR notation: `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    addr: IpAddr,
    prefix_len: u8,
}

impl Subnet {
    /// From `ADDRESS/BITS`; bits of the address beyond the prefix do not matter.
    pub fn parse(text: &str) -> Option<Subnet> {
        let (addr, prefix_len) = text.split_once('/')?;
        Subnet::new(addr.parse().ok()?, prefix_len.parse().ok()?)
    }

    /// The range that shares the first `prefix_len` bits of an address, if it has as many.
    pub fn new(addr: IpAddr, prefix_len: u8) -> Option<Subnet> {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        (prefix_len <= bits).then_some(Subnet { addr, prefix_len })
    }

    /// Whether the address lies in the range. IPv4 and IPv6 never meet.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let differing_bits = match (self.addr, addr) {
            (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
            (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
            _ => return false,
        };
        differing_bits.leading_zeros() >= u32::from(self.prefix_len)
    }
}

/// The format is that of [`Subnet::parse`].
impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix_len)
    }
}
