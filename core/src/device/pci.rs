//! Recognises the ports that belong to one card.

use core::fmt;

/// The sysfs path of a PCI device, reduced to its card as in NCCL. All ports of a card have the same reduced
/// path (`net_ib/init.cc ncclIbNormalizePciPath`).
///
/// ```text
///   /sys/devices/pci0000:00/0000:00:01.0/0000:3b:02.1
///                                                ╷╷ ╷
///   device: becomes 00 if virtual functions ─────┴┘ └─── function: becomes 0
///   are part of the card
/// ```
///
/// Two paths are equal, and print alike, if they name one card. A path that does not end in a PCI
/// address stays as it is; NCCL would overwrite its letters.
#[derive(Clone, Copy, Debug, Eq)]
pub struct PciPath<'a> {
    path: &'a str,
    merge_vfs: bool,
}

impl<'a> PciPath<'a> {
    /// Takes the target of the link `/sys/class/infiniband/NAME/device`. With `merge_vfs` virtual functions,
    /// which have device numbers of their own, are part of the card (`NCCL_IB_MERGE_VFS`).
    pub fn new(path: &'a str, merge_vfs: bool) -> Self {
        PciPath { path, merge_vfs }
    }

    /// The part of the path that stays, and the text that replaces the rest.
    fn parts(&self) -> (&'a str, &'static str) {
        let PciPath { path, merge_vfs } = *self;
        match path.as_bytes() {
            // The path ends at least in ":dd.f": the device is hexadecimal, the function 0-7.
            [.., b':', d1, d0, b'.', b'0'..=b'7']
                if d1.is_ascii_hexdigit() && d0.is_ascii_hexdigit() =>
            {
                let zeroed = if merge_vfs { "00.0" } else { "0" };
                (&path[..path.len() - zeroed.len()], zeroed)
            }
            _ => (path, ""),
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
    fn functions_are_one_card_and_virtual_functions_are_part_of_it_if_the_user_wants_that() {
        let card = "/sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0";
        for merge_vfs in [false, true] {
            assert_eq!(PciPath::new(card, merge_vfs).to_string(), card);
            for (end, is_virtual) in
                [("00.1", false), ("00.7", false), ("01.2", true), ("0f.0", true), ("1A.3", true)]
            {
                let function = std::format!("/sys/devices/pci0000:00/0000:00:01.0/0000:3b:{end}");
                let path = PciPath::new(&function, merge_vfs);
                let is_of_card = merge_vfs || !is_virtual;
                assert_eq!(path == PciPath::new(card, merge_vfs), is_of_card, "{end} {merge_vfs}");
                assert_eq!(path.to_string() == card, is_of_card, "{end} {merge_vfs}");
            }
            let [one, same, other] = ["3b:02.1", "3b:02.0", "3c:02.0"];
            assert_eq!(PciPath::new(one, merge_vfs), PciPath::new(same, merge_vfs));
            assert_ne!(PciPath::new(one, merge_vfs), PciPath::new(other, merge_vfs));
        }
    }

    #[test]
    fn paths_that_end_in_no_pci_address_stay_as_they_are() {
        let odd = ["", "0", ".0", "1.0", ":1.0", ":é1.0", ":00.8", ":00.10", ":0000.0"];
        for path in odd.into_iter().chain(["/sys/devices/virtual/net/veth1", "nvlink:0:1.é"]) {
            for merge_vfs in [false, true] {
                assert_eq!(PciPath::new(path, merge_vfs).to_string(), path);
            }
        }
    }

    #[test]
    fn the_real_port_counts_earlier_ports_of_the_card() {
        for (merge_vfs, numbers) in [(true, [0, 0, 1, 2]), (false, [0, 0, 1, 0])] {
            let found = ["a:3b:00.0", "a:5e:00.0", "a:3b:00.1", "a:3b:01.0"];
            let found = found.map(|path| PciPath::new(path, merge_vfs));
            let ports = (0..found.len()).map(|i| real_port(found[i], found[..i].iter().copied()));
            assert_eq!(ports.collect::<std::vec::Vec<_>>(), numbers);
        }
    }
}
