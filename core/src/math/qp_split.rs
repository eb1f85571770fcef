//! How a message is split over the queue pairs of a connection.

/// Every part but the last is a multiple of this, so that the LL and LL128 protocols, which look
/// for flags inside lines of 128 bytes, find each line whole.
pub const QP_SPLIT_ALIGN: u32 = 128;

/// The split of one buffer (`net_ib.cc ncclIbMultiSend`): each queue pair takes an equal share,
/// rounded up to [`QP_SPLIT_ALIGN`], until nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSplit {
    size: u64,
    share: u64,
    nqps: u32,
}

/// The part of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpPart {
    /// Bytes before it: all of them for the queue pairs that get nothing, where NCCL runs on past
    /// the end of the buffer.
    pub offset: u32,
    /// Bytes; 0 for the queue pairs that get nothing.
    pub length: u32,
}

impl QpSplit {
    /// Splits `size` bytes over `nqps` queue pairs, at least one. One division.
    pub const fn new(size: u32, nqps: u32) -> Self {
        let nqps = if nqps == 0 { 1 } else { nqps };
        let align = QP_SPLIT_ALIGN as u64;
        let share = (size.div_ceil(nqps) as u64 + align - 1) & !(align - 1);
        QpSplit { size: size as u64, share, nqps }
    }

    /// The part of queue pair `q`; nothing from `nqps` on.
    pub const fn part(&self, q: u32) -> QpPart {
        let start = q as u64 * self.share;
        let offset = if start < self.size { start } else { self.size };
        let left = self.size - offset;
        let length = if left < self.share { left } else { self.share };
        QpPart { offset: offset as u32, length: length as u32 }
    }

    /// The parts of all queue pairs, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = QpPart> + use<> {
        let split = *self;
        (0..self.nqps).map(move |q| split.part(q))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Offset, within the message, and length for each queue pair, the way NCCL walks through them.
    fn as_nccl(size: i64, nqps: i64) -> Vec<(i64, i64)> {
        let (mut parts, mut offset) = (Vec::new(), 0);
        for _ in 0..nqps {
            let share = ((size + nqps - 1) / nqps + 127) / 128 * 128;
            parts.push((offset.min(size), (size - offset).min(share).max(0)));
            offset += share;
        }
        parts
    }

    #[test]
    fn small_messages_leave_queue_pairs_empty() {
        let lengths = |size, nqps| QpSplit::new(size, nqps).iter().map(|p| p.length).collect();
        let expect: [(u32, u32, Vec<u32>); 6] = [
            (0, 2, [0, 0].into()),
            (1, 2, [1, 0].into()),
            (300, 4, [128, 128, 44, 0].into()),
            (512, 4, [128; 4].into()),
            (1000, 3, [384, 384, 232].into()),
            (7, 0, [7].into()),
        ];
        for (size, nqps, parts) in expect {
            let got: Vec<u32> = lengths(size, nqps);
            assert_eq!(got, parts, "{size} over {nqps}");
        }
    }

    #[test]
    fn the_largest_message_is_split_without_overflow() {
        for nqps in [1, 2, 127, 128] {
            let total: u64 = QpSplit::new(u32::MAX, nqps).iter().map(|p| u64::from(p.length)).sum();
            assert_eq!(total, u64::from(u32::MAX));
        }
    }

    proptest! {
        #[test]
        fn the_parts_are_those_of_nccl_and_tile_the_message(
            size in prop_oneof![0..4096u32, any::<u32>()],
            nqps in 1..=128u32,
        ) {
            let parts: Vec<QpPart> = QpSplit::new(size, nqps).iter().collect();
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
