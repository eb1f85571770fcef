//! The hosts and links of a history, as its seed decides.

use invar_core::nic::Mtu;
use invar_core::roce::qp::Tuning;

use super::{Link, SimNic, World};
use crate::random::Random;

/// Creates `nhosts` hosts, and random links between each pair of hosts and from each host to itself.
pub(super) fn network(random: &mut Random, nhosts: u32, ipv6: bool) -> (World, Vec<SimNic>) {
    let window_packets_max = random.pick(&[4, 16, 64, 256]);
    let tuning = Tuning { window_packets_max, ..Tuning::default() };
    let world = World::new(random.next(), ipv6, tuning);
    let mtus = [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096];
    let nics: Vec<SimNic> = (0..nhosts).map(|_| world.add_host(random.pick(&mtus))).collect();
    let trouble = random.pick(&[0, 0, 10_000, 80_000]);
    for from in 0..nics.len() {
        for to in 0..nics.len() {
            world.set_link(from, to, link(random, trouble));
        }
    }
    (world, nics)
}

/// Lets some hosts of a quarter of the histories offer packets that are longer than their MTU.
pub(super) fn lengthen(random: &mut Random, world: &World, nics: &[SimNic]) {
    if random.chance(250_000) {
        let payloads = [0, 320, 1472, 8192];
        nics.iter().for_each(|nic| world.offer_long_packets(nic.host(), random.pick(&payloads)));
    }
}

/// Changes a seed to that of the choice of [`shorten`]. With a stream of its own, the choice leaves all others as
/// they are.
const LENGTHS: u64 = 0x3c6e_f72f_e94f_82b5;

/// Gives all ports one of the `limits` on the length of a work request, in bytes; 0 stands for none.
pub(super) fn shorten(seed: u64, world: &World, limits: &[u32]) {
    let limit = Random::new(seed ^ LENGTHS).pick(limits);
    if limit > 0 {
        world.limit_messages(limit);
    }
}

/// A random link between two hosts. Each kind of fault has at most the chance `trouble`.
fn link(random: &mut Random, trouble: u32) -> Link {
    let mut some = |end: u64| random.below(end + 1);
    let trouble = u64::from(trouble);
    Link {
        delay_ns: some(20_000),
        jitter_ns: some(5_000),
        loss_ppm: some(trouble) as u32,
        duplicate_ppm: some(trouble) as u32,
        reorder_ppm: some(trouble) as u32,
        reorder_ns: some(50_000),
        corrupt_ppm: some(trouble) as u32,
    }
}
