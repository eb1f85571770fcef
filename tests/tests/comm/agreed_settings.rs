//! Tests the settings that the two ends agree on, and settings and calls that are refused.

use invar_core::conn::stage::Side;
use invar_core::conn::{CommSettings, Wire};
use invar_core::error::{Error, ErrorKind};

use crate::line::Line;
use crate::rig::Handshake;

/// The number of receives that can be posted before the first of them ends.
fn receives_posted(settings: [CommSettings; 2]) -> usize {
    let Line { mut duo, to, .. } = Line::new(settings);
    let room = to.room(0, 64, 0);
    assert_eq!(duo.send.isend(&Default::default(), 0), Ok(None));
    (0..1000).take_while(|_| duo.recv.irecv(&[room]).expect("irecv").is_some()).count()
}

#[test]
fn the_smaller_fifo_depth_holds() {
    for (connector, acceptor) in [(256, 256), (64, 256), (256, 64), (1, 256), (256, 1), (2, 8)] {
        let depth = |fifo_depth| CommSettings { fifo_depth, ..CommSettings::default() };
        let posted = receives_posted([depth(connector), depth(acceptor)]);
        assert_eq!(posted, usize::from(connector.min(acceptor)), "{connector} and {acceptor}");
    }
}

#[test]
fn the_wire_of_nccl_2_14_has_64_rows_whatever_is_set() {
    let settings = CommSettings { wire: Wire::Nccl214, fifo_depth: 256, ..CommSettings::default() };
    assert_eq!(receives_posted([settings; 2]), 64);
}

/// The number of queue pairs that carry a message, as each end knows it.
fn queue_pairs(settings: [CommSettings; 2]) -> [usize; 2] {
    let Line { mut duo, from, to, .. } = Line::with(settings, 1 << 20);
    let message = from.message(0, 1 << 20);
    // On the wire of NCCL 2.14 the sender finishes its setup first.
    assert_eq!(duo.send.isend(&message, 0), Ok(None));
    let received = duo.irecv(&[to.room(0, 1 << 20, 0)]);
    let sent = duo.isend(&message, 0);
    let of_sender = duo.send.work(&sent).expect("under way").count();
    let of_receiver = duo.recv.work(&received).count();
    [of_sender, of_receiver]
}

#[test]
fn the_connectors_number_of_queue_pairs_holds_up_to_16_or_the_acceptors_own_number() {
    for (connector, acceptor, both) in
        [(1, 3, 1), (2, 3, 2), (4, 3, 4), (128, 3, 16), (128, 64, 64)]
    {
        let settings = |qps| CommSettings { qps, fifo_depth: 4, ..CommSettings::default() };
        let found = queue_pairs([settings(connector), settings(acceptor)]);
        assert_eq!(found, [both; 2], "{connector} and {acceptor}");
    }
}

#[test]
fn on_the_wire_of_nccl_2_14_both_ends_have_the_number_of_queue_pairs_that_both_are_set_to() {
    for qps in [1, 4, 128] {
        let settings = CommSettings { wire: Wire::Nccl214, qps, ..CommSettings::default() };
        assert_eq!(queue_pairs([settings; 2]), [usize::from(qps); 2]);
    }
}

#[test]
fn settings_out_of_range_are_named_on_the_first_call() {
    let usual = CommSettings::default();
    let cases = [
        (CommSettings { fifo_depth: 0, ..usual }, "fifo_depth"),
        (CommSettings { fifo_depth: 3, ..usual }, "fifo_depth"),
        (CommSettings { fifo_depth: 512, ..usual }, "fifo_depth"),
        (CommSettings { qps: 0, ..usual }, "qps"),
        (CommSettings { qps: 129, ..usual }, "qps"),
        (CommSettings { timeout: 32, ..usual }, "timeout"),
        (CommSettings { retry_cnt: 8, ..usual }, "retry_cnt"),
    ];
    for (settings, name) in cases {
        let mut handshake = Handshake::new([settings; 2]);
        for side in [Side::Connector, Side::Acceptor] {
            let error = handshake.poll(side).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }
}

#[test]
fn connect_and_accept_give_their_comm_once() {
    for wire in [Wire::Invar, Wire::Nccl214] {
        let mut handshake = Handshake::new([CommSettings { wire, ..CommSettings::default() }; 2]);
        for side in [Side::Connector, Side::Acceptor].into_iter().cycle().take(6) {
            handshake.poll(side).expect("no error");
        }
        let Handshake { mut connector, mut acceptor, .. } = handshake;
        let again = [connector.poll(0).err(), acceptor.poll(0).err()];
        for (error, call) in again.into_iter().zip(["connect", "accept"]) {
            let error = error.expect("an error");
            assert!(matches!(error, Error::State { .. }), "{error}");
            assert_eq!(error.to_string(), format!("{call} called in state Connected"));
        }
    }
}
