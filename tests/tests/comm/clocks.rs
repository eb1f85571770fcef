//! A connector learns from the handshake how far the acceptor's clock is ahead of its own.

use invar_core::auth::Session;
use invar_core::conn::wire::{MESSAGE_BYTES_MAX, TIME_BYTES};
use invar_core::conn::{Acceptor, CommSettings, Connector, Stream};
use invar_core::nic::Nic;
use invar_core::peer_clock::PeerClock;
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;
use proptest::prelude::*;

/// Byte and bit of the preface's feature.
const TIME_FEATURE: (usize, u8) = (16, 1 << 5);

/// Connects two ends, of which the acceptor's clock is `ahead_ns` ahead. The messages take these times. The
/// ends in `old` do not know the feature; 0 is the connector. Returns what the connector
/// learns, and the length of the acceptor's answer.
fn learned(ahead_ns: u64, ways_ns: [u64; 2], old: &[usize]) -> (Option<PeerClock>, usize) {
    let nics: [NullNic; 2] = NullNic::ports();
    let [a, b] = nics.each_ref().map(|nic| (nic.clone(), nic.alloc_pd().expect("a domain")));
    let [(here, mut here_far), (there, mut there_far)] = [Pipe::pair(), Pipe::pair()];
    let settings = CommSettings::default();
    let mut connector = Connector::new(a.0, a.1, here, None, settings, 0);
    let mut acceptor = Acceptor::new(b.0, b.1, there, Session::UNKNOWN_PEER, settings, ahead_ns);
    let mut message = [0; MESSAGE_BYTES_MAX + TIME_BYTES];
    let asked_ns = 1_000_000;
    assert!(connector.poll(asked_ns).expect("no error").is_none());
    assert_eq!(here_far.recv(&mut message), Ok(MESSAGE_BYTES_MAX));
    let (at, bit) = TIME_FEATURE;
    assert_eq!(message[at] & bit, bit, "the connector takes the time");
    if old.contains(&0) {
        message[at] &= !bit;
    }
    there_far.send(&message[..MESSAGE_BYTES_MAX]).expect("a pipe");
    let answered_ns = asked_ns + ways_ns[0] + ahead_ns;
    assert!(acceptor.poll(answered_ns).expect("no error").is_none());
    let mut len = there_far.recv(&mut message).expect("an answer");
    if old.contains(&1) {
        message[at] &= !bit;
        len = MESSAGE_BYTES_MAX;
    }
    // The answer comes in two pieces.
    here_far.send(&message[..len - 3]).expect("a pipe");
    assert!(connector.poll(asked_ns + ways_ns[0]).expect("no error").is_none());
    here_far.send(&message[len - 3..len]).expect("a pipe");
    let comm = connector.poll(asked_ns + ways_ns[0] + ways_ns[1]).expect("no error");
    (comm.expect("connected").ends().peer_clock, len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_acceptors_clock_is_as_far_ahead_as_the_handshake_says(
        ahead_ns in 0..1_u64 << 50, ways_ns: [u16; 2],
    ) {
        let ways_ns = ways_ns.map(u64::from);
        let (clock, len) = learned(ahead_ns, ways_ns, &[]);
        let PeerClock { ahead_ns: told, uncertainty_ns } = clock.expect("a clock");
        prop_assert!(told.abs_diff(ahead_ns as i64) <= uncertainty_ns, "{told} of {ahead_ns}");
        prop_assert!(uncertainty_ns <= (ways_ns[0] + ways_ns[1]).div_ceil(2));
        prop_assert_eq!(len, MESSAGE_BYTES_MAX + TIME_BYTES);
    }
}

#[test]
fn an_end_that_knows_no_times_connects_as_before() {
    for old in [&[0][..], &[1]] {
        assert_eq!(learned(500, [10, 10], old), (None, MESSAGE_BYTES_MAX), "{old:?}");
    }
}
