//! Ranks that share no memory.

use invar::{RedOp, Settings};

use crate::operations::check_type;
use crate::rig::{PATIENCE, ranks, settings};

/// Over one kind of device, on loopback.
fn over(transport: &str) -> Settings {
    let set = |name| match name {
        "INVAR_TRANSPORT" => Some(transport.to_owned()),
        "NCCL_SHM_DISABLE" => Some("1".to_owned()),
        _ => None,
    };
    let settings = Settings::from_lookup(set).unwrap();
    settings.connect_timeout(PATIENCE).collective_timeout(PATIENCE)
}

fn check_over(transport: &str, nranks: u32) {
    ranks(nranks, &over(transport), |communicator| {
        check_type::<f32>(&communicator, &[0, 1, 999, 50_001], &[RedOp::Avg]);
        // As much as two ranks still do in one hop, and more.
        check_type::<i32>(&communicator, &[60_001, 300_007], &[RedOp::Sum]);
        let rank = communicator.rank();
        let (sent, mut got) = (vec![rank; 100_000], vec![0; 100_000]);
        let mut group = communicator.group();
        group.send(&sent, (rank + 1) % nranks).unwrap();
        group.recv(&mut got, (rank + nranks - 1) % nranks).unwrap();
        group.run().unwrap();
        assert_eq!(got, vec![(rank + nranks - 1) % nranks; 100_000]);
    });
}

#[test]
fn ranks_agree_over_the_software_nic() {
    check_over("soft", 2);
    check_over("soft", 3);
}

#[test]
fn ranks_agree_over_tcp() {
    check_over("socket", 2);
    check_over("socket", 3);
}

#[test]
fn counts_that_differ_are_told_over_a_network_too() {
    for transport in ["soft", "socket"] {
        for count in [10, 200_000] {
            let errors = ranks(2, &over(transport), |communicator| {
                let mut data = vec![1_i32; count + communicator.rank() as usize];
                let reduced = communicator.all_reduce_in_place(&mut data, RedOp::Sum);
                reduced.unwrap_err().to_string()
            });
            let told = |error: &String| {
                error.contains("do all ranks make the same calls")
                    || error.contains("collective mismatch: ")
            };
            assert!(errors.iter().all(|error| error.contains("rank ")), "{errors:?}");
            assert!(errors.iter().any(told), "{transport}, {count}: {errors:?}");
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_over_a_network_too() {
    for transport in ["soft", "socket"] {
        let errors = ranks(3, &over(transport), |communicator| {
            // Links come about; others may still be in it when rank 1 is out.
            let mut done = communicator.barrier();
            if communicator.rank() == 1 {
                communicator.abort("enough");
            }
            loop {
                if let Err(error) = done {
                    return error.to_string();
                }
                done = communicator.all_reduce_in_place(&mut [1.0; 100], RedOp::Sum);
            }
        });
        assert!(errors.iter().all(|error| error == "rank 1: aborted: enough"), "{errors:?}");
    }
}

#[test]
fn a_rank_says_by_which_ways_it_reaches_the_others() {
    for (nranks, settings, stand) in [
        (1, settings(), "no proxy: no links\n"),
        (2, settings(), "no proxy: links are in shared memory\n"),
        (2, over("socket"), "links over the network\nACTIVE OPS\n[X]\n"),
    ] {
        for (dump, rank) in ranks(nranks, &settings, |rank| rank.dump()).iter().zip(0..) {
            assert_eq!(*dump, format!("rank {rank} of {nranks}: {stand}"));
        }
    }
}
