//! The division of a message over the queue pairs of a connection.

/// Every part but the last is a multiple of this number of bytes. The LL and LL128 protocols look for
/// flags inside lines of 128 bytes, so each line must stay whole.
pub const QP_SPLIT_ALIGN: u32 = 128;

/// The split of one buffer (`net_ib.cc ncclIbMultiSend`). Each queue pair takes an equal share, rounded
/// up to [`QP_SPLIT_ALIGN`], until no bytes are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSplit {
    offset: u32,
    left: u32,
    share: u64,
}

/// The part of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpPart {
    /// Offset of the part in the buffer. For a queue pair without bytes it is the length of the buffer,
    /// where NCCL goes on past the buffer's end.
    pub offset: u32,
    /// Length of the part in bytes; 0 for a queue pair without bytes.
    pub length: u32,
}

impl QpSplit {
    /// Splits `size` bytes over `nqps` queue pairs; 0 counts as one. This takes one division, or none
    /// if the first queue pair takes all of a small message.
    #[inline]
    pub const fn new(size: u32, nqps: u32) -> Self {
        let each = if size <= QP_SPLIT_ALIGN || nqps == 0 { size } else { size.div_ceil(nqps) };
        let align = QP_SPLIT_ALIGN as u64;
        let share = (each as u64 + align - 1) & !(align - 1);
        QpSplit { offset: 0, left: size, share }
    }

    /// The part of the next queue pair.
    #[inline]
    pub const fn next_part(&mut self) -> QpPart {
        self.next_part_of(self.share)
    }

    /// The part of the next queue pair, if its share is `share` bytes. All shares but the last must be
    /// multiples of [`QP_SPLIT_ALIGN`].
    #[inline]
    pub const fn next_part_of(&mut self, share: u64) -> QpPart {
        let length = if (self.left as u64) < share { self.left } else { share as u32 };
        let part = QpPart { offset: self.offset, length };
        self.offset += length;
        self.left -= length;
        part
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Offset within the message, and length, for each queue pair, computed as NCCL does.
    fn as_nccl(size: i64, nqps: i64) -> Vec<(i64, i64)> {
        let (mut parts, mut offset) = (Vec::new(), 0);
        for _ in 0..nqps {
            let share = ((size + nqps - 1) / nqps + 127) / 128 * 128;
            parts.push((offset.min(size), (size - offset).min(share).max(0)));
            offset += share;
        }
        parts
    }

    fn parts(size: u32, nqps: u32) -> impl Iterator<Item = QpPart> {
        let mut split = QpSplit::new(size, nqps);
        (0..nqps).map(move |_| split.next_part())
    }

    #[test]
    fn small_messages_leave_queue_pairs_empty() {
        let expect: [(u32, u32, Vec<u32>); 5] = [
            (0, 2, [0, 0].into()),
            (1, 2, [1, 0].into()),
            (300, 4, [128, 128, 44, 0].into()),
            (512, 4, [128; 4].into()),
            (1000, 3, [384, 384, 232].into()),
        ];
        for (size, nqps, lengths) in expect {
            let got: Vec<u32> = parts(size, nqps).map(|part| part.length).collect();
            assert_eq!(got, lengths, "{size} over {nqps}");
        }
    }

    #[test]
    fn the_largest_message_is_split_without_overflow() {
        for nqps in [1, 2, 127, 128] {
            let total: u64 = parts(u32::MAX, nqps).map(|part| u64::from(part.length)).sum();
            assert_eq!(total, u64::from(u32::MAX));
        }
    }

    proptest! {
        #[test]
        fn the_parts_are_those_of_nccl_and_tile_the_message(
            size in prop_oneof![0..4096u32, any::<u32>()],
            nqps in 1..=128u32,
        ) {
            let parts: Vec<QpPart> = parts(size, nqps).collect();
            let got: Vec<_> = parts.iter().map(|p| (p.offset.into(), p.length.into())).collect();
            prop_assert_eq!(got, as_nccl(size.into(), nqps.into()));
            let mut end = 0;
            for part in parts {
                prop_assert_eq!(part.offset, end);
                end += part.length;
                prop_assert!(part.length % QP_SPLIT_ALIGN == 0 || end == size);
            }
            prop_assert_eq!(end, size);
        }
    }
}
