//! Ports that have a fault, under connections with recovery and without.

use invar_core::comm::RecoveryStage;
use invar_core::conn::CommSettings;
use invar_core::error::ErrorKind;

use crate::line::Line;
use crate::rig;

#[test]
fn a_port_that_reports_a_fault_is_not_used_until_it_works_again() {
    for end in 0..2 {
        let mut line = Line::new([CommSettings::default(); 2]);
        line.nics[end].set_down(true);
        line.pass(10).expect("nobody has reported anything");
        assert_eq!(line.stages(), [None; 2]);
        line.nics[end].plan.port_changes.set(1);
        line.pass(100).expect("there is time left");
        assert_eq!(line.stages()[end], Some(RecoveryStage::Stopped));
        line.nics[end].set_down(false);
        line.pass(1100).expect("a recovery");
        assert_eq!(line.attempts(), [1, 1]);
        let received = line.irecv(0);
        let sent = line.isend(0);
        line.check_arrived(&sent, &received);
    }
}

#[test]
fn without_recovery_messages_wait_for_a_dead_port_no_longer_than_queue_pairs_would() {
    // Queue pairs try twice for 67 ms, and a NIC may take four times as long.
    let fragile = CommSettings { timeout: 14, retry_cnt: 1, ..rig::fragile() };
    for (waits, is_back) in [(true, false), (true, true), (false, false)] {
        let mut line = Line::new([fragile; 2]);
        line.hold(true);
        if waits {
            let _ = line.irecv(0);
            let _ = line.isend(0);
        }
        line.nics[0].set_down(true);
        line.nics[0].plan.port_changes.set(1);
        line.pass(530).expect("there is time left");
        if is_back {
            line.nics[0].set_down(false);
        }
        let ended = line.pass(30);
        assert_eq!(ended.is_err(), waits && !is_back, "{waits} {is_back}");
        if let Err(error) = ended {
            let text = error.to_string();
            assert!(text.contains("look at this end first: the port is down"), "{text}");
            assert_eq!(error.kind(), ErrorKind::Local);
        }
    }
}

#[test]
fn a_report_about_a_port_that_works_again_changes_nothing() {
    let mut line = Line::new([CommSettings::default(); 2]);
    line.nics.iter().for_each(|nic| nic.plan.port_changes.set(2));
    line.pass(100).expect("no fault");
    assert_eq!(line.attempts(), [0, 0]);
}

#[test]
fn without_recovery_a_connection_goes_on_over_a_faulty_port_as_long_as_messages_arrive() {
    let fragile = CommSettings { timeout: 14, retry_cnt: 1, ..rig::fragile() };
    let mut line = Line::new([fragile; 2]);
    line.nics[0].set_down(true);
    line.nics[0].plan.port_changes.set(1);
    for round in 0..8 {
        let received = line.irecv(0);
        line.hold(true);
        let sent = line.isend(0);
        line.pass(300).unwrap_or_else(|error| panic!("round {round}: {error}"));
        line.hold(false);
        line.check_arrived(&sent, &received);
        // A pause is no wait.
        line.pass(if round == 4 { 1_000 } else { 0 }).expect("nothing waits");
    }
}
