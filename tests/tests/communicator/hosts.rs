//! Ranks run on two hosts as the kernel sees them. Some ranks share memory, others do not.

use half::f16;
use invar::{Communicator, RedOp};
use invar_testkit::namespaces::Hosts;

use crate::groups::exchange_all;
use crate::operations::check_type;
use crate::rig::{ranks_on, set};

/// The ways by which a rank reaches the others, in the words of its dump.
fn ways(places: &[usize], rank: usize) -> String {
    let others = (0..places.len()).filter(|other| *other != rank);
    let local: Vec<_> = others.filter(|other| places[*other] == places[rank]).collect();
    let ways = match local.is_empty() {
        true => "links over the network".to_owned(),
        false => format!("links with ranks {local:?} in shared memory, else over the network"),
    };
    format!("rank {rank} of {}: {ways}", places.len())
}

fn check_everything(communicator: &Communicator) {
    check_type::<f32>(communicator, &[0, 1, 999], &RedOp::ALL);
    check_type::<f16>(communicator, &[20_001], &[RedOp::Sum]);
    // This many elements take several chunks on each channel.
    check_type::<i32>(communicator, &[150_001], &[RedOp::Max]);
    exchange_all(communicator);
}

#[test]
fn ranks_that_partly_share_memory_agree_between_hosts() {
    let Some(hosts) = Hosts::or_skip(1500) else { return };
    for settings in ["soft", "socket"].map(|transport| set(&[("INVAR_TRANSPORT", transport)])) {
        for places in [&[0, 0, 1][..], &[0, 1, 1, 0], &[0, 0, 0, 1], &[1, 0, 1, 1]] {
            ranks_on(&hosts, places, &settings, |communicator| {
                let dump = communicator.dump();
                assert_eq!(dump.lines().next(), Some(&*ways(places, communicator.rank() as usize)));
                check_everything(&communicator);
            });
        }
    }
}
