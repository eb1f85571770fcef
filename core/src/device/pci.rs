//! Recognises the ports that belong to one card.

use core::fmt;

/// The sysfs path of a PCI device, reduced to its card as in NCCL. All functions and virtual functions
/// of a card have the same reduced path (`net_ib.cc ncclIbGetPciPath`).
///
/// ```text
///   /sys/devices/pci0000:00/0000:00:01.0/0000:3b:02.1
///                                                  ╷ ╷
///                      last digit of the device ───┘ └─── function: both become 0
/// ```
///
/// Two paths are equal, and print alike, if they name one card. A path that does not end in a PCI
/// address stays as it is; NCCL would overwrite its letters.
#[derive(Clone, Copy, Debug, Eq)]
pub struct PciPath<'a>(&'a str);

impl<'a> PciPath<'a> {
    /// Takes the target of the link `/sys/class/infiniband/NAME/device`.
    pub fn new(path: &'a str) -> Self {
        PciPath(path)
    }

    /// The part of the path that stays, and the text that replaces the rest.
    fn parts(&self) -> (&'a str, &'static str) {
        match self.0.as_bytes() {
            // The path ends at least in "/dddd:bb:dd.f": the last device digit is hexadecimal, the
            // function 0-7.
            [.., b':', d1, d0, b'.', b'0'..=b'7']
                if d1.is_ascii_hexdigit() && d0.is_ascii_hexdigit() =>
            {
                (&self.0[..self.0.len() - 3], "0.0")
            }
            _ => (self.0, ""),
        }
    }
}

impl PartialEq for PciPath<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl fmt::Display for PciPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kept, zeroed) = self.parts();
        write!(f, "{kept}{zeroed}")
    }
}

/// Number of the port on its card, from 0: the number of earlier devices on the same card.
///
/// Recent cards show each port as a separate device with `port_num` 1, so NCCL reports `port_num` plus
/// this number.
pub fn real_port<'a>(path: PciPath<'_>, earlier: impl IntoIterator<Item = PciPath<'a>>) -> usize {
    earlier.into_iter().filter(|other| *other == path).count()
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn functions_and_virtual_functions_are_one_card() {
        let card = "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0";
        assert_eq!(PciPath::new(card).to_string(), card);
        for end in ["00.1", "00.7", "01.2", "0f.0"] {
            let path = std::format!("/sys/devices/pci0000:00/0000:00:01.0/0000:3b:{end}");
            assert_eq!(PciPath::new(&path).to_string(), card);
            assert_eq!(PciPath::new(&path), PciPath::new(card));
        }
        let other = "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:10.0";
        assert_ne!(PciPath::new(other), PciPath::new(card));
        assert_ne!(PciPath::new("0000:3c:00.0"), PciPath::new("0000:3b:00.0"));
    }

    #[test]
    fn paths_that_end_in_no_pci_address_stay_as_they_are() {
        let odd = ["", "0", ".0", "1.0", ":1.0", ":é1.0", ":00.8", ":00.10", ":0000.0"];
        for path in odd.into_iter().chain(["/sys/devices/virtual/net/veth1", "nvlink:0:1.é"]) {
            assert_eq!(PciPath::new(path).to_string(), path);
        }
    }

    #[test]
    fn the_real_port_counts_earlier_ports_of_the_card() {
        let found = ["a:3b:00.0", "a:5e:00.0", "a:3b:00.1", "a:3b:01.0"].map(PciPath::new);
        let ports: std::vec::Vec<_> =
            (0..found.len()).map(|i| real_port(found[i], found[..i].iter().copied())).collect();
        assert_eq!(ports, [0, 0, 1, 2]);
    }
}
