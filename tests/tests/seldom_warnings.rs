//! Warnings that come seldom, however many connections a process has.

use invar_core::auth::Session;
use invar_core::conn::{Acceptor, CommSettings, Wire};
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;
use invar_testkit::{duo, warnings};

#[test]
fn the_first_connection_of_a_process_without_recovery_warns_and_later_ones_do_not() {
    warnings::keep();
    let connect = |settings| {
        let [a, b]: [NullNic; 2] = NullNic::ports();
        duo::connect([&a, &b], [settings; 2], || {}).expect("a connection");
        warnings::with(&["queue pairs that fail end the connection"]).len()
    };
    let nccl = CommSettings { wire: Wire::Nccl214, ..CommSettings::default() };
    assert_eq!(connect(CommSettings::default()), 0, "both ends recover");
    assert_eq!(connect(CommSettings { recovery_timeout_ns: 0, ..nccl }), 0, "nobody wants it");
    assert_eq!(connect(nccl), 1);
    assert_eq!(connect(nccl), 1);
}

#[test]
fn failed_callers_without_proof_warn_at_powers_of_two() {
    warnings::keep();
    let settings = CommSettings { wire: Wire::Nccl214, ..CommSettings::default() };
    for _ in 0..1000 {
        let [nic, _]: [NullNic; 2] = NullNic::ports();
        let (here, there) = Pipe::pair();
        drop(there);
        let mut acceptor = Acceptor::new(nic, 1, here, Session::UNKNOWN_PEER, settings, 0);
        assert!(acceptor.poll(0).is_err());
    }
    assert_eq!(warnings::with(&["accept: ", "the peer closed the connection"]).len(), 10);
}
