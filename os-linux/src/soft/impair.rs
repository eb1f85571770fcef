//! A simulated bad network, for tests and measurements.

use super::device::{Datagram, Route, Train};

/// Faults that hit outgoing packets, each with its probability in parts per million.
///
/// The impairment sends a train in pieces. So over IPv4, a peer that includes the identification in the
/// ICRC may see packets as damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairmentConfig {
    /// Probability that a packet is lost.
    pub drop_ppm: u32,
    /// Probability that a packet is sent twice.
    pub duplicate_ppm: u32,
    /// Probability that a packet is held back behind up to [`REORDER_PACKETS_MAX`] later ones; if too
    /// few follow, it is lost.
    pub reorder_ppm: u32,
    /// Probability that one bit of a packet is flipped.
    pub corrupt_ppm: u32,
    /// Seed that decides which packets are hit.
    pub seed: u64,
}

/// Maximum number of packets that can overtake a packet.
pub const REORDER_PACKETS_MAX: u32 = 8;

pub(super) struct Impairment {
    config: ImpairmentConfig,
    state: u64,
    late: Option<Late>,
}

/// A packet that is held back.
struct Late {
    route: Route,
    bytes: Vec<u8>,
    packets_to_go: u32,
}

enum Fate {
    Pass,
    Drop,
    Duplicate,
    Delay,
    Corrupt,
}

impl Impairment {
    pub(super) fn new(config: ImpairmentConfig) -> Self {
        Impairment { config, state: config.seed, late: None }
    }

    /// Passes the surviving packets of a train to `send`. The whole train counts as sent, so packets
    /// that `send` has no room for are lost too.
    pub(super) fn pass(
        &mut self,
        train: Train<'_>,
        mut send: impl FnMut(Train<'_>) -> usize,
    ) -> usize {
        let datagrams = train.datagrams;
        let mut send = |route: Route, datagrams: &[Datagram<'_>]| {
            if let Some(first) = datagrams.first() {
                send(Train { route, segment_bytes: first.wire_bytes(), datagrams });
            }
        };
        // Index of the first datagram that is not handled yet.
        let mut run = 0;
        for (i, datagram) in datagrams.iter().enumerate() {
            let fate = self.fate();
            if !matches!(fate, Fate::Pass) {
                send(train.route, &datagrams[run..i]);
                run = i + 1;
            }
            match fate {
                Fate::Pass | Fate::Drop => {}
                Fate::Duplicate => {
                    send(train.route, &[*datagram]);
                    send(train.route, &[*datagram]);
                }
                Fate::Corrupt => {
                    let mut bytes = datagram.to_vec();
                    let at = self.random() as usize % bytes.len();
                    bytes[at] ^= 1 << (self.random() % 8);
                    send(train.route, &[Datagram::whole(&bytes)]);
                }
                Fate::Delay => {
                    let packets_to_go = self.random() as u32 % REORDER_PACKETS_MAX + 1;
                    let (route, bytes) = (train.route, datagram.to_vec());
                    // Only one packet waits at a time: an earlier one that still waits is lost.
                    self.late = Some(Late { route, bytes, packets_to_go });
                }
            }
            if let Some(late) = self.late.take_if(|late| {
                late.packets_to_go -= 1;
                late.packets_to_go == 0
            }) {
                send(train.route, &datagrams[run..i + 1]);
                run = i + 1;
                send(late.route, &[Datagram::whole(&late.bytes)]);
            }
        }
        send(train.route, &datagrams[run..]);
        datagrams.len()
    }

    fn fate(&mut self) -> Fate {
        let ImpairmentConfig { drop_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm, .. } =
            self.config;
        let mut dice = (self.random() % 1_000_000) as u32;
        for (ppm, fate) in [
            (drop_ppm, Fate::Drop),
            (duplicate_ppm, Fate::Duplicate),
            (reorder_ppm, Fate::Delay),
            (corrupt_ppm, Fate::Corrupt),
        ] {
            if dice < ppm {
                return fate;
            }
            dice -= ppm;
        }
        Fate::Pass
    }

    /// Returns the next random number of SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the packets that arrive behind `config` if 30 trains of 10 packets are sent; each packet
    /// is its own number.
    fn behind(config: ImpairmentConfig) -> Vec<Vec<u8>> {
        let mut impairment = Impairment::new(config);
        let mut out = Vec::new();
        for t in 0..30 {
            let bytes: Vec<u8> = (0..10).flat_map(|i| (t * 10 + i as u32).to_be_bytes()).collect();
            let to = "[::1]:4791".parse().unwrap();
            let (source, traffic_class, hop_limit) = (0, 0, 64);
            let route = Route { to, source, traffic_class, hop_limit, masks_ip_id: true };
            let datagrams: Vec<Datagram<'_>> = bytes.chunks(4).map(Datagram::whole).collect();
            let train = Train { route, segment_bytes: 4, datagrams: &datagrams };
            let taken = impairment.pass(train, |train| {
                out.extend(train.datagrams.iter().map(Datagram::to_vec));
                train.datagrams.len()
            });
            assert_eq!(taken, 10);
        }
        out
    }

    fn numbers(packets: &[Vec<u8>]) -> Vec<u32> {
        packets.iter().map(|p| u32::from_be_bytes(p[..].try_into().unwrap())).collect()
    }

    #[test]
    fn a_network_without_faults_changes_nothing() {
        let config = ImpairmentConfig::default();
        assert_eq!(numbers(&behind(config)), Vec::from_iter(0..300));
    }

    #[test]
    fn packets_are_lost_doubled_delayed_and_damaged_as_often_as_asked_for() {
        let seed = 3;
        let all = Vec::from_iter(0..300);
        let tenth = 100_000;

        let lost =
            numbers(&behind(ImpairmentConfig { drop_ppm: tenth, seed, ..Default::default() }));
        assert!(lost.is_sorted() && (250..290).contains(&lost.len()), "{}", lost.len());

        let config = ImpairmentConfig { duplicate_ppm: tenth, seed, ..Default::default() };
        let mut doubled = numbers(&behind(config));
        assert!(doubled.is_sorted() && (310..350).contains(&doubled.len()), "{}", doubled.len());
        doubled.dedup();
        assert_eq!(doubled, all);

        let config = ImpairmentConfig { reorder_ppm: tenth, seed, ..Default::default() };
        let mut late = numbers(&behind(config));
        assert!(!late.is_sorted());
        let far = late.iter().enumerate().map(|(at, &n)| at.abs_diff(n as usize)).max();
        assert!(far > Some(0) && late.len() > 280, "{far:?} {}", late.len());
        late.sort_unstable();
        late.dedup();
        assert!(late.len() > 280);

        let config = ImpairmentConfig { corrupt_ppm: tenth, seed, ..Default::default() };
        let damaged = numbers(&behind(config));
        let hit = damaged.iter().zip(&all).filter(|(got, sent)| got != sent);
        let bits: Vec<u32> = hit.map(|(got, sent)| (got ^ sent).count_ones()).collect();
        assert!((10..50).contains(&bits.len()) && bits.iter().all(|&n| n == 1), "{bits:?}");
    }

    #[test]
    fn one_seed_is_one_network() {
        let config = |seed| ImpairmentConfig { drop_ppm: 200_000, seed, ..Default::default() };
        assert_eq!(behind(config(1)), behind(config(1)));
        assert_ne!(behind(config(1)), behind(config(2)));
    }
}
