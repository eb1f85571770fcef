//! Tests messages in groups that overlap in any way, over links that do not exist yet.

use std::cmp::Reverse;

use invar::Communicator;
use invar_testkit::pattern::pattern;
use proptest::prelude::*;

use crate::rig::{ranks, set};

const NRANKS: u32 = 4;
const CHUNK_BYTES: usize = 4096;

/// A message from one rank to another.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: u32,
    to: u32,
    len: usize,
    /// Whether the sender, and whether the receiver, puts this transfer into one group with its
    /// previous one.
    joined: [bool; 2],
}

impl Transfer {
    fn any() -> impl Strategy<Value = Transfer> {
        // Messages of several chunks go over both channels.
        let len = prop_oneof![0..3_usize, CHUNK_BYTES - 1..CHUNK_BYTES + 2, 1..20 * CHUNK_BYTES];
        (0..NRANKS, 1..NRANKS, len, any::<[bool; 2]>()).prop_map(|(from, far, len, joined)| {
            Transfer { from, to: (from + far) % NRANKS, len, joined }
        })
    }

    fn has(&self, rank: u32) -> bool {
        [self.from, self.to].contains(&rank)
    }

    fn peer(&self, rank: u32) -> u32 {
        if self.from == rank { self.to } else { self.from }
    }

    fn is_joined(&self, rank: u32) -> bool {
        self.joined[usize::from(self.to == rank)]
    }

    fn message(&self, number: usize) -> Vec<u8> {
        pattern(number, self.len)
    }
}

/// Splits a rank's share of the transfers, in their order, into groups. The first unfinished transfer
/// is always in the current group at both of its ends, so no rank waits for another in a circle.
fn groups(transfers: &[Transfer], rank: u32) -> Vec<Vec<(usize, Transfer)>> {
    let mut groups: Vec<Vec<(usize, Transfer)>> = Vec::new();
    for (number, transfer) in transfers.iter().copied().enumerate().filter(|(_, of)| of.has(rank)) {
        match groups.last_mut() {
            Some(group) if transfer.is_joined(rank) => group.push((number, transfer)),
            _ => groups.push(vec![(number, transfer)]),
        }
    }
    // Between two ranks both keep the order of their transfers.
    groups.iter_mut().for_each(|group| group.sort_by_key(|(_, of)| Reverse(of.peer(rank))));
    groups
}

fn take_part(communicator: &Communicator, transfers: &[Transfer]) {
    let rank = communicator.rank();
    let mut started = Vec::new();
    for group in groups(transfers, rank) {
        let buffer = |(number, of): &(usize, Transfer)| {
            if of.from == rank { of.message(*number) } else { vec![0; of.len] }
        };
        if let [alone] = group[..] {
            let (data, of) = (buffer(&alone), alone.1);
            let pending = match of.from == rank {
                true => communicator.start_send(data, of.to),
                false => communicator.start_recv(data, of.from),
            };
            started.push((alone, pending.unwrap()));
            continue;
        }
        let mut buffers: Vec<Vec<u8>> = group.iter().map(buffer).collect();
        let mut calls = communicator.group();
        for ((_, of), data) in group.iter().zip(&mut buffers) {
            match of.from == rank {
                true => calls.send(data, of.to).unwrap(),
                false => calls.recv(data, of.from).unwrap(),
            };
        }
        calls.run().unwrap();
        for ((number, of), data) in group.iter().zip(&buffers) {
            assert!(*data == of.message(*number), "{number} at rank {rank}");
        }
    }
    for ((number, of), pending) in started {
        assert!(pending.wait().unwrap() == of.message(number), "{number} at rank {rank}");
    }
}

proptest! {
    // A case that hangs takes long, so make few attempts to shrink it.
    #![proptest_config(ProptestConfig { max_shrink_iters: 8, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn groups_that_overlap_in_any_way_are_done(
        transport in prop_oneof![Just("soft"), Just("socket")],
        transfers in prop::collection::vec(Transfer::any(), 1..40),
    ) {
        let settings = set(&[
            ("INVAR_TRANSPORT", transport),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_CHUNK_SIZE", &CHUNK_BYTES.to_string()),
        ]);
        ranks(NRANKS, &settings, |communicator| take_part(&communicator, &transfers));
    }
}
