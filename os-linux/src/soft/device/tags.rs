//! Packet tags, by which the two ends of a connection authenticate each other's packets.
//!
//! A tag is the message authentication code of AEGIS-128L over a packet, from its BTH to its padding. It
//! takes the place of the ICRC. The nonce is the number of times that the packet's sequence number has
//! passed 2^24. So a recorded packet is not valid again when its sequence number comes again. Before
//! that, a replayed packet is a duplicate, which the engine detects.

use aegis::aegis128l::Aegis128LMac;

use invar_core::auth::Secret;
use invar_core::nic::PacketKeys;
use invar_core::roce::{Bth, Psn};

/// Length of a tag in bytes.
pub(super) const TAG_BYTES: usize = 16;

/// Number of bits in a sequence number on the wire.
const PSN_BITS: u32 = 24;

/// Makes the tags of packets to the peer and checks the tags of the peer's packets.
pub(super) struct Tags {
    send: Tagger,
    recv: Tagger,
    /// The latest request that this end has sent. The peer's responses answer a request near it.
    sent: LongPsn,
    /// The latest request that the peer has sent. This end's responses answer a request near it.
    received: LongPsn,
}

/// The tag state of one direction.
struct Tagger {
    key: [u8; 16],
    epoch: u64,
    /// The MAC state after key and nonce, before a packet.
    start: Aegis128LMac<TAG_BYTES>,
}

/// A sequence number with the upper bits that the wire leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LongPsn(u64);

impl LongPsn {
    /// Extends the sequence number of a packet that is less than 2^23 away from this one.
    fn near(self, psn: Psn) -> LongPsn {
        let distance = psn.since(Psn::new(self.0 as u32));
        LongPsn(self.0.wrapping_add_signed(distance.into()))
    }

    fn epoch(self) -> u64 {
        self.0 >> PSN_BITS
    }
}

impl Tagger {
    fn new(key: &Secret) -> Self {
        let key = *key.as_bytes().first_chunk().expect("a secret has 32 bytes");
        Tagger { key, epoch: 0, start: Self::start(&key, 0) }
    }

    fn start(key: &[u8; 16], epoch: u64) -> Aegis128LMac<TAG_BYTES> {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&epoch.to_le_bytes());
        Aegis128LMac::new_with_nonce(key, &nonce)
    }

    /// Returns the MAC state for a packet of this epoch.
    #[inline]
    fn at(&mut self, epoch: u64) -> Aegis128LMac<TAG_BYTES> {
        if self.epoch != epoch {
            (self.epoch, self.start) = (epoch, Self::start(&self.key, epoch));
        }
        self.start.clone()
    }
}

impl Tags {
    /// Makes the tags of a connection; `first` is the peer's first sequence number.
    pub(super) fn new(keys: &PacketKeys, first: Psn) -> Self {
        let (send, recv) = (Tagger::new(&keys.send), Tagger::new(&keys.recv));
        Tags { send, recv, sent: LongPsn(0), received: LongPsn(first.get().into()) }
    }

    /// Sets the first sequence number of this end.
    pub(super) fn set_first_psn(&mut self, first: Psn) {
        self.sent = LongPsn(first.get().into());
    }

    /// Makes the tag of a packet to the peer.
    #[inline]
    pub(super) fn make(&mut self, bth: &Bth, packet: &[u8]) -> [u8; TAG_BYTES] {
        let psn = if bth.opcode.is_response() {
            self.received.near(bth.psn)
        } else {
            let psn = self.sent.near(bth.psn);
            self.sent = self.sent.max(psn);
            psn
        };
        let mut mac = self.send.at(psn.epoch());
        mac.update(packet);
        mac.finalize()
    }

    /// Whether the peer made a packet, which ends with its tag.
    #[inline]
    pub(super) fn verify(&mut self, bth: &Bth, packet: &[u8]) -> bool {
        let Some((packet, tag)) = packet.split_last_chunk::<TAG_BYTES>() else { return false };
        let is_response = bth.opcode.is_response();
        let psn = if is_response { self.sent } else { self.received }.near(bth.psn);
        let mut mac = self.recv.at(psn.epoch());
        mac.update(packet);
        let is_peers = mac.verify(tag).is_ok();
        if is_peers && !is_response {
            self.received = self.received.max(psn);
        }
        is_peers
    }
}

#[cfg(test)]
mod tests {
    use invar_core::roce::Opcode;

    use super::*;

    const PACKET: &[u8] = b"a packet";

    /// Makes the tag states of two ends from their first sequence numbers.
    fn ends(firsts: [u32; 2]) -> [Tags; 2] {
        let [one, other] = [1, 2].map(|key| Secret::new([key; 32]));
        let tags = |send, recv, [sent, received]: [u32; 2]| {
            let mut tags = Tags::new(&PacketKeys { send, recv }, Psn::new(received));
            tags.set_first_psn(Psn::new(sent));
            tags
        };
        let [first, second] = firsts;
        [tags(one, other, firsts), tags(other, one, [second, first])]
    }

    fn bth(opcode: Opcode, psn: u32) -> Bth {
        Bth { opcode, psn: Psn::new(psn), ..Bth::default() }
    }

    fn pass(from: &mut Tags, to: &mut Tags, bth: Bth) -> bool {
        let tag = from.make(&bth, PACKET);
        to.verify(&bth, &[PACKET, &tag].concat())
    }

    #[test]
    fn requests_and_their_responses_pass_while_sequence_numbers_wrap_again_and_again() {
        let [mut a, mut b] = ends([0xff_fff0, 5]);
        for step in 0..100u32 {
            let psn = 0xff_fff0 + step * 0x20_0001;
            assert!(pass(&mut a, &mut b, bth(Opcode::WRITE_ONLY, psn)), "{step}");
            // These responses answer a READ far ahead, and requests that are long acknowledged.
            for near in [0, 0x1f_ffff, 0u32.wrapping_sub(0x1f_ffff)] {
                let ack = bth(Opcode::ACKNOWLEDGE, psn.wrapping_add(near));
                assert!(pass(&mut b, &mut a, ack), "{step} {near:#x}");
            }
            let late = bth(Opcode::WRITE_ONLY, psn.wrapping_sub(1000));
            assert!(pass(&mut a, &mut b, late), "{step}: packets overtake each other");
        }
        assert_eq!(b.received.epoch(), 13);
    }

    #[test]
    fn a_recorded_packet_is_not_valid_when_its_number_comes_again() {
        let [mut a, mut b] = ends([0, 0]);
        let old = bth(Opcode::WRITE_ONLY, 7);
        let recorded = [PACKET, &a.make(&old, PACKET)].concat();
        assert!(b.verify(&old, &recorded));
        for psn in [0x50_0000, 0xa0_0000, 0xf0_0000, 0x100_0006] {
            assert!(pass(&mut a, &mut b, bth(Opcode::WRITE_ONLY, psn)));
        }
        assert!(!b.verify(&old, &recorded));
        assert!(pass(&mut a, &mut b, old), "a new packet of that number");
    }

    #[test]
    fn a_forged_packet_does_not_move_what_is_expected() {
        let [mut a, mut b] = ends([0, 0]);
        let far = bth(Opcode::WRITE_ONLY, 0x7f_ffff);
        assert!(!b.verify(&far, &[PACKET, &[0; TAG_BYTES]].concat()));
        assert_eq!(b.received, LongPsn(0));
        assert!(pass(&mut a, &mut b, bth(Opcode::WRITE_ONLY, 0)));
    }

    #[test]
    fn the_tag_is_that_of_the_specification() {
        // draft-irtf-cfrg-aegis-aead, test vector of AEGISMAC-128L.
        let key = [0x10, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let nonce = [0x10, 0, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut mac = Aegis128LMac::<TAG_BYTES>::new_with_nonce(&key, &nonce);
        mac.update(&std::array::from_fn::<u8, 35, _>(|i| i as u8));
        assert_eq!(u128::from_be_bytes(mac.finalize()), 0xd3f0_9b28_42ad_3016_87d6_902c_921d_7818);
    }
}
