//! Messages in groups that overlap in any way, over links that are all still to be made.

use std::cmp::Reverse;

use invar::Communicator;
use proptest::prelude::*;

use crate::rig::{ranks, set};

const NRANKS: u32 = 4;
const CHUNK_BYTES: usize = 4096;

/// A message from a rank to another.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: u32,
    to: u32,
    len: usize,
    /// Whether who sends and who receives does it at once with what it has before.
    joined: [bool; 2],
}

impl Transfer {
    fn any() -> impl Strategy<Value = Transfer> {
        // Those of several chunks go over both channels.
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
        (0..self.len).map(|i| (i * 7 + i / 251 + number * 31) as u8).collect()
    }
}

/// A rank's share of all transfers, in their order, but for those that it does at once. The first of
/// all that are not done is under way at both its ends: each is done where it waits for no other.
fn groups(transfers: &[Transfer], rank: u32) -> Vec<Vec<(usize, Transfer)>> {
    let mut groups: Vec<Vec<(usize, Transfer)>> = Vec::new();
    for (number, transfer) in transfers.iter().copied().enumerate().filter(|(_, of)| of.has(rank)) {
        match groups.last_mut() {
            Some(group) if transfer.is_joined(rank) => group.push((number, transfer)),
            _ => groups.push(vec![(number, transfer)]),
        }
    }
    // Between two ranks the order is that of both.
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
    // One that hangs takes long: a few attempts at a shorter one.
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
