//! Tests sends and receives, alone and in groups.

use invar::{Communicator, ErrorKind, RedOp};

use crate::rig::{every_way, ranks, settings};

/// A message of no elements, of few, or of as many as take several chunks. Each pair of ranks has its
/// own content.
fn message(from: u32, to: u32, number: usize) -> Vec<u32> {
    let len = match number % 4 {
        0 => 0,
        n => [3, 5000, 270_000][n - 1] + from * 7 + to,
    };
    (0..len).map(|i| i ^ from << 20 ^ to << 24 ^ (number as u32) << 28).collect()
}

/// Every rank sends to every rank, itself included, in one group.
pub(crate) fn exchange_all(communicator: &Communicator) {
    let (rank, nranks) = (communicator.rank(), communicator.nranks());
    let pairs: Vec<_> = (0..nranks).flat_map(|peer| [0, 1, 2, 3].map(|n| (peer, n))).collect();
    let sent: Vec<_> = pairs.iter().map(|(to, n)| message(rank, *to, *n)).collect();
    let want: Vec<_> = pairs.iter().map(|(from, n)| message(*from, rank, *n)).collect();
    let mut got: Vec<_> = want.iter().map(|message| vec![0; message.len()]).collect();
    let mut group = communicator.group();
    for ((peer, _), message) in pairs.iter().zip(&sent) {
        group.send(message, *peer).unwrap();
    }
    for ((peer, _), message) in pairs.iter().zip(&mut got) {
        group.recv(message, *peer).unwrap();
    }
    group.run().unwrap();
    assert!(got == want);
}

#[test]
fn every_rank_sends_to_every_other_and_itself_at_once() {
    for settings in every_way() {
        ranks(4, &settings, |communicator| exchange_all(&communicator));
    }
}

#[test]
fn a_send_and_a_receive_meet() {
    ranks(2, &settings(), |communicator| {
        for number in 0..20 {
            let want = message(0, 1, number);
            if communicator.rank() == 0 {
                communicator.send(&want, 1).unwrap();
            } else {
                let mut got = vec![0; want.len()];
                communicator.recv(&mut got, 0).unwrap();
                assert!(got == want, "message {number}");
            }
        }
    });
}

#[test]
fn a_rank_may_do_at_once_what_others_do_one_after_the_other() {
    for settings in every_way() {
        ranks(3, &settings, |communicator| {
            let rank = communicator.rank();
            if rank > 0 {
                let mut got = [0];
                communicator.recv(&mut got, 0).unwrap();
                communicator.send(&[got[0] + rank], 0).unwrap();
                return;
            }
            let (sent, mut one, mut two) = ([7], [0], [0]);
            let mut group = communicator.group();
            group.send(&sent, 1).unwrap().recv(&mut one, 1).unwrap();
            group.send(&sent, 2).unwrap().recv(&mut two, 2).unwrap();
            group.run().unwrap();
            assert_eq!((one, two), ([8], [9]));
        });
    }
}

#[test]
fn a_transfer_of_a_group_waits_for_no_other_whose_peer_is_late() {
    for settings in every_way() {
        ranks(3, &settings, |communicator| {
            let (mut from_zero, mut from_one) = ([0], [0]);
            match communicator.rank() {
                0 => {
                    let mut group = communicator.group();
                    group.send(&[5], 2).unwrap().send(&[7], 1).unwrap();
                    group.run().unwrap();
                }
                1 => {
                    communicator.recv(&mut from_zero, 0).unwrap();
                    communicator.send(&[from_zero[0] + 1], 2).unwrap();
                }
                _ => {
                    communicator.recv(&mut from_one, 1).unwrap();
                    communicator.recv(&mut from_zero, 0).unwrap();
                    assert_eq!((from_zero, from_one), ([5], [8]));
                }
            }
        });
    }
}

#[test]
fn collectives_of_a_group_are_done_too() {
    ranks(3, &settings(), |communicator| {
        let rank = communicator.rank();
        let (mut sum, mut all, mut got) = (vec![rank; 1000], vec![rank; 10], vec![0; 5]);
        let sent = vec![rank; 5];
        let mut group = communicator.group();
        group.all_reduce_in_place(&mut sum, RedOp::Sum).unwrap();
        group.send(&sent, (rank + 1) % 3).unwrap();
        group.broadcast(&mut all, 2).unwrap();
        group.recv(&mut got, (rank + 2) % 3).unwrap();
        group.run().unwrap();
        assert_eq!((sum, all, got), (vec![3; 1000], vec![2; 10], vec![(rank + 2) % 3; 5]));
    });
}

#[test]
fn a_group_has_every_collective_of_its_communicator() {
    ranks(3, &settings(), |communicator| {
        let (rank, op) = (communicator.rank(), RedOp::Sum);
        let three = [rank + 1, 10 * rank, 7];
        let block = &three[..1];
        let from = if rank == 1 { &three[..] } else { &[] };
        let outputs = || [[0; 3]; 11];
        let in_place = |outputs: &mut [[u32; 3]; 11]| outputs[6..].fill(three);

        let mut want = outputs();
        in_place(&mut want);
        let [a, b, c, d, e, f, g, h, i, j, k] = &mut want;
        communicator.all_reduce(&three, a, op).unwrap();
        communicator.all_gather(block, b).unwrap();
        communicator.reduce_scatter(&three, &mut c[..1], op).unwrap();
        communicator.broadcast_from(from, d, 1).unwrap();
        communicator.reduce(&three, if rank == 1 { e } else { &mut [] }, op, 1).unwrap();
        communicator.all_to_all(&three, f).unwrap();
        communicator.all_reduce_in_place(g, op).unwrap();
        communicator.all_gather_in_place(h).unwrap();
        communicator.reduce_scatter_in_place(i, op).unwrap();
        communicator.broadcast(j, 1).unwrap();
        communicator.reduce_in_place(k, op, 1).unwrap();

        let mut got = outputs();
        in_place(&mut got);
        let [a, b, c, d, e, f, g, h, i, j, k] = &mut got;
        let mut group = communicator.group();
        group.all_reduce(&three, a, op).unwrap().all_gather(block, b).unwrap();
        group.reduce_scatter(&three, &mut c[..1], op).unwrap().barrier().unwrap();
        group.broadcast_from(from, d, 1).unwrap();
        group.reduce(&three, if rank == 1 { e } else { &mut [] }, op, 1).unwrap();
        group.all_to_all(&three, f).unwrap().all_reduce_in_place(g, op).unwrap();
        group.all_gather_in_place(h).unwrap().reduce_scatter_in_place(i, op).unwrap();
        group.broadcast(j, 1).unwrap().reduce_in_place(k, op, 1).unwrap();
        group.run().unwrap();
        // A reduce_scatter in place leaves all blocks undefined except the rank's own.
        for outputs in [&mut want, &mut got] {
            let own = outputs[8][rank as usize];
            outputs[8] = [own; 3];
        }
        assert_eq!(got, want);
        assert_eq!(got[0], [6, 30, 21]);
    });
}

#[test]
fn a_message_to_oneself_needs_both_ends_in_one_group() {
    ranks(1, &settings(), |communicator| {
        let (sent, mut got) = ([1, 2, 3_u64], [0; 3]);
        let mut group = communicator.group();
        group.send(&sent, 0).unwrap().recv(&mut got, 0).unwrap();
        group.run().unwrap();
        assert_eq!(got, sent);
        let mut group = communicator.group();
        group.send(&sent, 0).unwrap();
        let refused = [
            group.run(),
            communicator.send(&sent, 0),
            communicator.start_send(sent.to_vec(), 0).map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            let text = "rank 0 sends to itself 1 times and receives from itself 0 times";
            assert!(error.to_string().starts_with(text), "{error}");
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
        let refused = communicator.start_recv(vec![0_u8], 0).map(drop);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!(communicator.recv(&mut got, 0).unwrap_err().kind(), ErrorKind::Usage);
        communicator.barrier().expect("what a rank refuses ends nothing");
    });
}

#[test]
fn a_message_to_oneself_is_as_long_as_its_receive() {
    ranks(1, &settings(), |communicator| {
        let (sent, mut got) = ([1, 2, 3_u64], [0_u64; 2]);
        let mut group = communicator.group();
        group.send(&sent, 0).unwrap().recv(&mut got, 0).unwrap();
        let error = group.run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let text = "a rank sends 24 bytes to itself and receives 16";
        assert!(error.to_string().contains(text), "{error}");
        communicator.barrier().expect("what a rank refuses ends nothing");
    });
}

#[test]
fn a_message_that_is_not_as_long_as_its_receive_is_an_error_that_names_both_ranks() {
    for settings in every_way() {
        for (sent, expected) in [
            (10, 9),
            (9, 10),
            (0, 1),
            (5, 0),
            (270_000, 270_001),
            (65_536, 32_768),
            (65_536, 131_072),
        ] {
            let errors = ranks(2, &settings, |communicator| {
                let done = match communicator.rank() {
                    0 => communicator.send(&vec![7_u32; sent], 1),
                    _ => communicator.recv(&mut vec![0_u32; expected], 0),
                };
                // The sender may finish before the message is received.
                done.and_then(|()| communicator.barrier()).unwrap_err().to_string()
            });
            let what = format!("{sent} for {expected}: {errors:?}");
            // Either rank may notice the mismatch by itself, or hear of it from the other one.
            let told =
                ["do all ranks make the same calls", "both ends must agree on length and tag"];
            let sees = |rank: usize| {
                let peer = 1 - rank;
                let differs = format!("rank {rank} and rank {peer} differ: rank {peer}");
                let error = &errors[rank];
                error.starts_with(&differs) && told.iter().any(|text| error.contains(text))
            };
            let hears = |rank: usize| {
                let peer = 1 - rank;
                sees(peer) && errors[rank] == format!("rank {peer}: {}", errors[peer])
            };
            assert!([0, 1].into_iter().all(|rank| sees(rank) || hears(rank)), "{what}");
        }
    }
}

#[test]
fn groups_of_no_elements_and_no_calls_are_done() {
    ranks(3, &settings(), |communicator| {
        communicator.group().run().unwrap();
        let (mut sum, mut all) = ([0_i32; 0], [0_u8; 0]);
        let mut group = communicator.group();
        group.all_reduce_in_place(&mut sum, RedOp::Sum).unwrap().broadcast(&mut all, 1).unwrap();
        group.run().unwrap();
        communicator.barrier().unwrap();
    });
}
