//! Published slots arrive in order, whoever moves them.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use invar::DataType;
use invar::communicator::{Algorithm, Links, Operation, Order, Plan, Progress, Task};
use invar_testkit::wait::until;

use crate::rig::{DEVICES, Rank, SLOT_BYTES, both, pair};

#[test]
fn slots_of_any_length_come_both_ways_on_every_kind_of_device() {
    for device in DEVICES {
        let mut ranks = pair(device, 1);
        for (seed, steps) in [(1, 1), (2, 7), (3, 8), (4, 100)] {
            both(&mut ranks, |rank| rank.exchange(seed, steps).expect(device));
        }
    }
}

/// A rank publishes slots and goes away. Another thread makes the rank's calls meanwhile.
#[test]
fn another_thread_may_move_what_a_rank_has_published() {
    for device in DEVICES {
        let [zero, one] = pair(device, 1);
        let (send, recv) = (Mutex::new(zero.sends), Mutex::new(one.recvs));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                until("the last message", || {
                    send.lock().unwrap()[0].progress().expect(device);
                    recv.lock().unwrap()[0].progress().expect(device);
                    done.load(Ordering::Relaxed)
                });
            });
            for step in 0..100_usize {
                until("a free slot", || send.lock().unwrap()[0].free(step).expect(device));
                send.lock().unwrap()[0].publish(step).expect(device);
                let (_, len) =
                    until("a full slot", || recv.lock().unwrap()[0].full().expect(device));
                assert_eq!(len, step, "{device}");
                recv.lock().unwrap()[0].release();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn links_on_many_channels_do_not_mix() {
    for device in ["soft IPv4", "socket IPv4", "soft IPv6", "socket IPv6"] {
        let mut ranks = pair(device, 12);
        both(&mut ranks, |rank| rank.exchange(7, 30).expect(device));
    }
}

#[test]
fn any_number_of_links_come_about_at_once() {
    for (device, channels) in [("soft IPv4", 70), ("shared socket IPv4", 40)] {
        let mut ranks = pair(device, channels);
        both(&mut ranks, |rank| rank.exchange(8, 2).expect(device));
    }
}

#[test]
fn short_transfers_go_one_after_another() {
    for device in ["soft IPv6", "socket IPv6"] {
        let mut ranks = pair(device, 1);
        both(&mut ranks, |rank| {
            for seed in 0..1500 {
                rank.exchange(seed, 1 + seed % 3).expect(device);
            }
        });
    }
}

/// A plan that sends to the other rank, or receives from it, on channel 0.
fn add(plan: &mut Plan, operation: Operation, rank: u32, input: *const u8, output: *mut u8) {
    let task = Task {
        operation,
        algorithm: Algorithm::Ring,
        count: 4,
        data_type: DataType::U8,
        rank,
        channel: 0,
        nchannels: 1,
        slot_bytes: SLOT_BYTES,
    };
    let ranks: Arc<[u32]> = Arc::from([0, 1]);
    let order = Order::new(ranks).unwrap();
    // SAFETY: the callers keep four bytes longer than the plan and its links, and do not use them meanwhile.
    unsafe { plan.add(order, &task, None, input, output) }.unwrap();
}

#[test]
fn a_message_that_has_come_is_progress_though_the_next_one_of_its_group_has_not() {
    let (sent, mut got) = ([7_u8; 4], [[0_u8; 4]; 2]);
    let [mut sender, mut receiver] = pair("soft IPv4", 1).map(|rank| {
        let mut links = Links::over_network(2, 1);
        let Rank { sends, recvs, network, .. } = rank;
        sends.into_iter().for_each(|link| links.add_send(0, link));
        recvs.into_iter().for_each(|link| links.add_recv(0, link));
        (Plan::default(), links, network)
    });
    add(&mut sender.0, Operation::Send { peer: 1 }, 0, sent.as_ptr(), ptr::null_mut());
    for message in &mut got {
        add(&mut receiver.0, Operation::Recv { peer: 0 }, 1, ptr::null(), message.as_mut_ptr());
    }
    let progress = until("the first message", || {
        sender.0.advance(&mut sender.1).unwrap();
        sender.1.progress().unwrap();
        let progress = receiver.0.advance(&mut receiver.1).unwrap();
        (progress != Progress::Waiting(0)).then_some(progress)
    });
    assert_eq!(progress, Progress::Moved);
    drop((sender, receiver));
    assert_eq!(got, [sent, [0; 4]]);
}
