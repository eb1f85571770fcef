//! Ranks that share no memory.

use std::fs;
use std::path::Path;
use std::thread;

use invar::{RedOp, Settings};
use serde_json::Value;

use crate::operations::check_type;
use crate::rig::{TIMEOUT, over, ranks, set, settings};

/// Settings for the software NIC, with one more variable set.
fn over_soft_with(variable: (&str, &str)) -> Settings {
    set(&[("INVAR_TRANSPORT", "soft"), ("NCCL_SHM_DISABLE", "1"), variable])
}

fn check_over(transport: &str, nranks: u32) {
    ranks(nranks, &over(transport), |communicator| {
        check_type::<f32>(&communicator, &[0, 1, 999, 50_001], &[RedOp::Avg]);
        // The sizes are the largest that two ranks still move in one hop, and more.
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
fn ranks_agree_over_each_transport() {
    for transport in ["soft", "socket"] {
        [2, 3].into_iter().for_each(|nranks| check_over(transport, nranks));
    }
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
            let part = |rank: u32| {
                let count = count + rank as usize;
                format!(") runs collective 1, all_reduce of {count} I32, Sum")
            };
            let told = |error: &String| error.contains(&part(0)) && error.contains(&part(1));
            assert!(errors.iter().all(told), "{transport}, {count}: {errors:?}");
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_over_a_network_too() {
    for transport in ["soft", "socket"] {
        let errors = ranks(3, &over(transport), |communicator| {
            // The links are created here. Other ranks may still be in the barrier when rank 1 leaves.
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
        (1, settings(), "no links\n"),
        (2, settings(), "links are in shared memory\n"),
        (2, over("socket"), "links over the network\nACTIVE LINKS\n[X]\n"),
    ] {
        for (dump, rank) in ranks(nranks, &settings, |rank| rank.dump()).iter().zip(0..) {
            assert_eq!(*dump, format!("rank {rank} of {nranks}: {stand}"));
        }
    }
}

/// The number of trace entries with this name, for each of two phases.
fn count(entries: &[Value], name: &str, ends: [&str; 2]) -> [usize; 2] {
    let is = |entry: &&Value, ph: &str| entry["name"] == name && entry["ph"] == ph;
    ends.map(|ph| entries.iter().filter(|entry| is(entry, ph)).count())
}

/// The texts of a rank's traces, one for each communicator.
fn traces(folder: &Path, rank: u32) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let names = names.filter(|name| name.ends_with(&format!("-{rank}.json")));
    names.map(|name| fs::read_to_string(folder.join(name)).unwrap()).collect()
}

#[test]
fn what_the_links_of_each_communicators_ranks_wait_for_is_traced() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("%c-%r.json");
    // The dump's thread may live longer than the links, but the trace of the links must be complete.
    let dump = ("NCCL_PROXY_DUMP_SIGNAL", "12");
    let trace = ("INVAR_PROXY_TRACE", pattern.to_str().unwrap());
    let network = [("INVAR_TRANSPORT", "soft"), ("NCCL_SHM_DISABLE", "1")];
    let settings = set(&[network[0], network[1], dump, trace]);
    for communicators in 1..=2 {
        ranks(2, &settings, |communicator| {
            let mut data = vec![1_u32; 300_000];
            communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
            let written = traces(folder.path(), communicator.rank());
            assert_eq!(written.len(), communicators);
            let is_written = written.iter().all(|text| text.contains("RecvGPUWait"));
            assert!(is_written, "a program that is killed leaves its trace");
            communicator.all_reduce_in_place(&mut data, RedOp::Sum).unwrap();
            assert!(data.iter().all(|sum| *sum == 4));
        });
    }
    for rank in 0..2 {
        for text in traces(folder.path(), rank) {
            let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
            assert!(entries.iter().all(|entry| entry["tid"] == rank));
            for name in ["SendPeerWait", "SendWait", "RecvWait", "RecvGPUWait"] {
                let [begun, ended] = count(&entries, name, ["b", "e"]);
                assert!(begun > 0 && begun == ended, "{name}: {begun} {ended}");
            }
            let steps = entries.iter().filter_map(|entry| entry["args"]["step"].as_u64());
            assert!(steps.max() > Some(1), "each link had several messages");
        }
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_named() {
    let settings = over_soft_with(("INVAR_PROXY_TRACE", "/no/such/place"));
    let hub =
        invar::Hub::listen(([127, 0, 0, 1], 0).into(), invar::PortRange::ANY, 2, None, TIMEOUT)
            .unwrap();
    let id = hub.id();
    let join = |rank| invar::Communicator::join(&id, rank, 2, &settings).err().unwrap().to_string();
    let errors = thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || join(rank)));
        ranks.map(|rank| rank.join().unwrap())
    });
    let text = "INVAR_PROXY_TRACE: creating /no/such/place.";
    assert!(errors.iter().all(|error| error.contains(text)), "{errors:?}");
}

#[test]
fn messages_go_in_chunks_of_the_size_that_is_set() {
    for chunk in ["1", "1000", "1000000000"] {
        ranks(2, &over_soft_with(("NCCL_CHUNK_SIZE", chunk)), |communicator| {
            let sent: Vec<u64> = (0..5000).collect();
            let mut got = vec![0; 5000];
            let mut group = communicator.group();
            let peer = 1 - communicator.rank();
            group.send(&sent, peer).unwrap().recv(&mut got, peer).unwrap();
            group.run().unwrap();
            assert!(got == sent, "{chunk}");
        });
    }
}
