//! What is published comes, in order, however it is moved.

use invar_testkit::sim::Random;

use crate::rig::{DEVICES, DIRECT, Moved, both, pair};

#[test]
fn slots_of_any_length_come_both_ways_on_every_kind_of_device_moved_by_ranks_that_wait() {
    for device in DEVICES.into_iter().chain(DIRECT) {
        let mut ranks = pair(device, 1);
        for (seed, steps) in [(1, 1), (2, 7), (3, 8), (4, 100)] {
            both(&mut ranks, |rank| rank.exchange(seed, steps, Moved::ByRank).expect(device));
        }
    }
}

#[test]
fn the_proxys_thread_moves_what_ranks_do_not_move_themselves() {
    for device in DEVICES {
        let mut ranks = pair(device, 2);
        for seed in 0..3 {
            both(&mut ranks, |rank| rank.exchange(seed, 50, Moved::ByThread).expect(device));
        }
        let [zero, one] = &mut ranks;
        std::thread::scope(|scope| {
            scope.spawn(|| zero.exchange(3, 50, Moved::ByRank).expect(device));
            scope.spawn(|| one.exchange(3, 50, Moved::ByThread).expect(device));
        });
    }
}

#[test]
fn links_on_many_channels_do_not_mix() {
    for device in ["soft IPv4", "socket IPv4", DIRECT[0], DIRECT[2]] {
        let mut ranks = pair(device, 12);
        both(&mut ranks, |rank| rank.exchange(7, 30, Moved::ByRank).expect(device));
    }
}

#[test]
fn any_number_of_links_come_about_at_once() {
    for (device, channels) in [(DEVICES[0], 70), (DIRECT[3], 40)] {
        let mut ranks = pair(device, channels);
        both(&mut ranks, |rank| rank.exchange(8, 2, Moved::ByRank).expect(device));
    }
}

#[test]
fn more_operations_than_the_pool_has_room_for_go_one_after_another() {
    for device in ["soft IPv6", "socket IPv6"] {
        let mut ranks = pair(device, 1);
        both(&mut ranks, |rank| {
            let mut random = Random::new(11);
            for seed in 0..1500 {
                let moved = if random.chance(990_000) { Moved::ByRank } else { Moved::ByThread };
                rank.exchange(seed, 1 + random.below(3), moved).expect(device);
            }
        });
        for rank in &mut ranks {
            rank.proxy.stop().expect(device);
        }
    }
}

#[test]
fn a_rank_may_say_far_ahead_what_it_will_send() {
    let mut ranks = pair("soft IPv4", 1);
    let [zero, one] = &mut ranks;
    for _ in 0..2000 {
        zero.sends[0].start(1).unwrap();
        one.recvs[0].start(1).unwrap();
    }
    for step in 0..2000u32 {
        let slot = loop {
            zero.sends[0].progress().unwrap();
            if let Some(slot) = zero.sends[0].free(4).unwrap() {
                break slot.cast::<u32>();
            }
        };
        // SAFETY: the slot is ours until it is published.
        unsafe { slot.write(step) };
        zero.sends[0].publish(4).unwrap();
        let (slot, len) = loop {
            zero.sends[0].progress().unwrap();
            one.recvs[0].progress().unwrap();
            if let Some(full) = one.recvs[0].full().unwrap() {
                break full;
            }
        };
        // SAFETY: the slot is ours until it is released.
        assert_eq!((unsafe { slot.cast::<u32>().read() }, len), (step, 4));
        one.recvs[0].release();
    }
}
