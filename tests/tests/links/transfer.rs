//! Published slots arrive in order, whoever moves them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use invar_testkit::wait::until;

use crate::rig::{DEVICES, both, pair};

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
