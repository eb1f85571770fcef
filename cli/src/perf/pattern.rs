//! The bytes of messages. They tell to which message they belong, and to which offset.

use invar::{Error, MemoryRegion};

/// Memory of messages.
pub(super) trait Bytes {
    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error>;
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error>;
}

impl Bytes for MemoryRegion {
    #[inline]
    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        MemoryRegion::read_at(self, offset, bytes)
    }

    #[inline]
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        MemoryRegion::write_at(self, offset, bytes)
    }
}

/// Bytes that are written or checked at a time.
const CHUNK_BYTES: usize = 32 << 10;
/// Bytes of the stamp at either end of a message.
const STAMP_BYTES: usize = 8;

/// The direction of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    ToServer,
    ToClient,
}

/// The bytes of all messages of one pass, in one direction. Seed, pass, direction, size, message and
/// offset determine each byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    key: u64,
    size: usize,
}

impl Pattern {
    pub(super) fn new(seed: u64, pass: u32, flow: Flow, size: u32) -> Self {
        let key = mix(seed ^ mix(u64::from(pass) << 1 | u64::from(flow == Flow::ToClient)));
        Pattern { key: mix(key ^ u64::from(size)), size: size as usize }
    }

    /// Writes a whole message into memory.
    pub(super) fn fill(
        &self,
        region: &(impl Bytes + ?Sized),
        at: usize,
        message: u64,
    ) -> Result<(), Error> {
        let mut bytes = [0; CHUNK_BYTES];
        for offset in (0..self.size).step_by(CHUNK_BYTES) {
            let bytes = &mut bytes[..CHUNK_BYTES.min(self.size - offset)];
            self.generate(message, offset, bytes);
            region.write_at(at + offset, bytes)?;
        }
        Ok(())
    }

    /// Counts the bytes of a whole message that are wrong.
    pub(super) fn wrong(
        &self,
        region: &(impl Bytes + ?Sized),
        at: usize,
        message: u64,
    ) -> Result<u64, Error> {
        let mut wrong = 0;
        for offset in (0..self.size).step_by(CHUNK_BYTES) {
            let len = CHUNK_BYTES.min(self.size - offset);
            wrong += self.differing::<CHUNK_BYTES>(region, at, message, offset, len)?;
        }
        Ok(wrong)
    }

    /// Writes the first and last bytes of a message.
    #[inline]
    pub(super) fn stamp(
        &self,
        region: &(impl Bytes + ?Sized),
        at: usize,
        message: u64,
    ) -> Result<(), Error> {
        for (offset, len) in self.stamps() {
            let mut bytes = [0; STAMP_BYTES];
            self.generate(message, offset, &mut bytes[..len]);
            region.write_at(at + offset, &bytes[..len])?;
        }
        Ok(())
    }

    /// Counts the first and last bytes of a message that are wrong.
    #[inline]
    pub(super) fn stamp_wrong(
        &self,
        region: &(impl Bytes + ?Sized),
        at: usize,
        message: u64,
    ) -> Result<u64, Error> {
        let mut wrong = 0;
        for (offset, len) in self.stamps() {
            wrong += self.differing::<STAMP_BYTES>(region, at, message, offset, len)?;
        }
        Ok(wrong)
    }

    /// The offset and the length of both stamps, which do not overlap. A short message is all stamp.
    #[inline]
    fn stamps(&self) -> [(usize, usize); 2] {
        let first = self.size.min(STAMP_BYTES);
        let last = (self.size - first).min(STAMP_BYTES);
        [(0, first), (self.size - last, last)]
    }

    #[inline]
    fn differing<const N: usize>(
        &self,
        region: &(impl Bytes + ?Sized),
        at: usize,
        message: u64,
        offset: usize,
        len: usize,
    ) -> Result<u64, Error> {
        let (mut expected, mut got) = ([0; N], [0; N]);
        let (expected, got) = (&mut expected[..len], &mut got[..len]);
        self.generate(message, offset, expected);
        region.read_at(at + offset, got)?;
        if expected == got {
            return Ok(0);
        }
        Ok(expected.iter().zip(got.iter()).filter(|(a, b)| a != b).count() as u64)
    }

    /// The bytes of a message from `offset` on.
    #[inline]
    fn generate(&self, message: u64, offset: usize, bytes: &mut [u8]) {
        let base = mix(self.key.wrapping_add(message));
        let word = |index: usize| mix(base ^ index as u64).to_le_bytes();
        let within = offset % 8;
        let head = bytes.len().min((8 - within) % 8);
        let (first, rest) = bytes.split_at_mut(head);
        first.copy_from_slice(&word(offset / 8)[within % 8..][..head]);
        for (bytes, index) in rest.chunks_mut(8).zip(offset.div_ceil(8)..) {
            bytes.copy_from_slice(&word(index)[..bytes.len()]);
        }
    }
}

/// The bijection of splitmix64, which mixes all bits.
#[inline]
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use invar::Device;
    use proptest::prelude::*;

    fn region(bytes: usize) -> MemoryRegion {
        let device = Device::open_at("[::1]:0".parse().unwrap()).unwrap();
        MemoryRegion::new(&device, bytes).unwrap()
    }

    #[test]
    fn each_wrong_byte_is_counted_and_only_those() {
        let region = region(1 << 17);
        for size in [0u32, 1, 7, 8, 9, 15, 16, 17, 4096, 32 << 10, (64 << 10) + 3] {
            let pattern = Pattern::new(1, 2, Flow::ToServer, size);
            let size = size as usize;
            for at in [0, 64] {
                pattern.fill(&region, at, 9).unwrap();
                assert_eq!(pattern.wrong(&region, at, 9).unwrap(), 0, "{size} bytes");
                assert_eq!(pattern.stamp_wrong(&region, at, 9).unwrap(), 0, "{size} bytes");
                for byte in [0, size / 3, size / 2, size.saturating_sub(1)] {
                    if byte >= size {
                        continue;
                    }
                    let mut good = [0];
                    region.read_at(at + byte, &mut good).unwrap();
                    region.write_at(at + byte, &[good[0] ^ 0x10]).unwrap();
                    assert_eq!(pattern.wrong(&region, at, 9).unwrap(), 1, "byte {byte} of {size}");
                    let in_stamp = u64::from(byte < 8 || byte + 8 >= size);
                    assert_eq!(pattern.stamp_wrong(&region, at, 9).unwrap(), in_stamp);
                    region.write_at(at + byte, &good).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_stamp_is_both_ends_of_the_whole_message() {
        let region = region(4096);
        for size in 0..40 {
            let pattern = Pattern::new(5, 0, Flow::ToClient, size);
            pattern.stamp(&region, 0, 3).unwrap();
            assert_eq!(pattern.stamp_wrong(&region, 0, 3).unwrap(), 0);
            if size <= 16 {
                assert_eq!(pattern.wrong(&region, 0, 3).unwrap(), 0, "{size} bytes");
            }
        }
    }

    #[test]
    fn bytes_of_another_message_pass_flow_size_or_run_are_wrong() {
        let region = region(4096);
        let pattern = |seed, pass, flow, size| Pattern::new(seed, pass, flow, size);
        pattern(1, 1, Flow::ToServer, 4096).fill(&region, 0, 1).unwrap();
        let wrong = |pattern: Pattern, message| pattern.wrong(&region, 0, message).unwrap();
        assert_eq!(wrong(pattern(1, 1, Flow::ToServer, 4096), 1), 0);
        for (pattern, message) in [
            (pattern(1, 1, Flow::ToServer, 4096), 2),
            (pattern(1, 2, Flow::ToServer, 4096), 1),
            (pattern(1, 1, Flow::ToClient, 4096), 1),
            (pattern(2, 1, Flow::ToServer, 4096), 1),
        ] {
            // One byte in 256 is right by chance.
            assert!(wrong(pattern, message) > 4000);
        }
        assert!(wrong(pattern(1, 1, Flow::ToServer, 4000), 1) > 3900);
    }

    proptest! {
        #[test]
        fn any_piece_is_a_piece_of_the_whole(
            message: u64, offset in 0usize..100, len in 0usize..100,
        ) {
            let pattern = Pattern::new(7, 7, Flow::ToServer, 200);
            let mut whole = [0; 200];
            pattern.generate(message, 0, &mut whole);
            let mut piece = vec![0; len];
            pattern.generate(message, offset, &mut piece);
            prop_assert_eq!(&piece[..], &whole[offset..offset + len]);
        }
    }
}
