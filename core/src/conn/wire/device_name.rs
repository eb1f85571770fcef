//! Names of devices as the wire carries them, for people to read.

/// Bytes of a device name on the wire, padded with zeros.
pub const DEVICE_NAME_BYTES: usize = 64;

/// A device's name, printable.
pub type DeviceName = heapless::String<DEVICE_NAME_BYTES>;

/// Cuts a name to the characters that fit.
pub(crate) fn shorten(name: &str) -> DeviceName {
    let mut device = DeviceName::new();
    for c in name.chars() {
        if device.push(c).is_err() {
            break;
        }
    }
    device
}

pub(crate) fn encode(name: &DeviceName) -> [u8; DEVICE_NAME_BYTES] {
    let mut bytes = [0; DEVICE_NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// Reads a name; characters that cannot be printed become question marks.
pub(crate) fn decode(bytes: &[u8; DEVICE_NAME_BYTES]) -> DeviceName {
    let name = bytes.split(|&c| c == 0).next().unwrap_or_default();
    name.iter().map(|&c| if c.is_ascii_graphic() { char::from(c) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_to_what_fits_and_to_what_can_be_printed() {
        let long = "\u{e4}\u{e4}\u{e4}".chars().cycle().take(33).collect::<heapless::String<66>>();
        assert_eq!(shorten(&long).len(), 64);
        assert_eq!(shorten("eth0"), "eth0");
        let mut bytes = encode(&shorten("eth0"));
        bytes[1] = 0x1b;
        bytes[5] = b'x';
        assert_eq!(decode(&bytes), "e?h0");
        assert_eq!(decode(&[b'a'; DEVICE_NAME_BYTES]).len(), DEVICE_NAME_BYTES);
    }
}
