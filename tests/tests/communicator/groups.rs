//! Sends and receives, alone and together.

use invar::RedOp;

use crate::rig::{ranks, settings};

fn message(from: u32, to: u32, number: usize) -> Vec<u32> {
    let len = [0, 3, 5000, 70_000][number % 4] + (from * 7 + to) as usize;
    (0..len as u32).map(|i| i ^ from << 20 ^ to << 24 ^ (number as u32) << 28).collect()
}

#[test]
fn every_rank_sends_to_every_other_and_itself_at_once() {
    ranks(4, &settings(), |communicator| {
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
    });
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
fn collectives_of_a_group_are_done_too() {
    ranks(3, &settings(), |communicator| {
        let rank = communicator.rank();
        let (mut sum, mut all, mut got) = (vec![rank; 1000], vec![rank; 10], vec![0; 5]);
        let sent = vec![rank; 5];
        let mut group = communicator.group();
        group.all_reduce(&mut sum, RedOp::Sum).unwrap();
        group.send(&sent, (rank + 1) % 3).unwrap();
        group.broadcast(&mut all, 2).unwrap();
        group.recv(&mut got, (rank + 2) % 3).unwrap();
        group.run().unwrap();
        assert_eq!((sum, all, got), (vec![3; 1000], vec![2; 10], vec![(rank + 2) % 3; 5]));
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
        let error = communicator.send(&sent, 0).unwrap_err().to_string();
        assert!(error.contains("sends to itself what it does not receive"), "{error}");
    });
}
