//! Tests what every rank hears when one rank does not do its part.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use invar::{ErrorKind, PortRange, RedOp};
use invar_testkit::wait::watch;

use crate::rig::{every_way, over, ranks, settings};

#[test]
fn an_abort_reaches_every_rank_with_its_reason() {
    let errors = ranks(4, &settings(), |communicator| {
        if communicator.rank() == 2 {
            communicator.abort("out of patience");
        }
        let error = communicator.barrier().unwrap_err();
        let later = communicator.all_reduce_in_place(&mut [1], RedOp::Sum).unwrap_err();
        assert_eq!(error.to_string(), later.to_string());
        assert_eq!(communicator.check().unwrap_err().to_string(), error.to_string());
        error
    });
    for error in errors {
        assert_eq!(error.to_string(), "rank 2: aborted: out of patience");
        assert_eq!((error.kind(), error.rank()), (ErrorKind::Peer, Some(2)));
        assert!(error.is_connection_lost() && !error.is_timeout());
    }
}

#[test]
fn a_panic_with_an_operation_under_way_ends_those_of_other_ranks() {
    let settings = settings().collective_timeout(Duration::from_secs(60));
    let errors = ranks(2, &settings, |communicator| {
        if communicator.rank() == 0 {
            return Some(communicator.barrier().unwrap_err().to_string());
        }
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _pending = communicator.start_recv(vec![0_u8; 1], 0).unwrap();
            // This rank's communicator ends first.
            let _communicator = communicator;
            panic!("a test wants it so");
        }));
        assert!(panicked.is_err());
        None
    });
    let error = errors[0].as_deref().unwrap_or_default();
    assert_eq!(error, "rank 1: aborted: its program has panicked");
}

#[test]
fn who_waits_for_a_rank_that_has_left_is_told_so() {
    for settings in every_way() {
        let errors = ranks(3, &settings, |communicator| {
            (communicator.rank() != 1).then(|| communicator.barrier().unwrap_err().to_string())
        });
        for error in errors.into_iter().flatten() {
            assert!(error.contains("rank 1: it has left the communicator"), "{error}");
        }
    }
}

#[test]
fn a_rank_that_does_something_else_is_given_up_and_named() {
    for settings in every_way() {
        let settings = settings.collective_timeout(Duration::from_millis(300));
        let errors = ranks(2, &settings, |communicator| {
            if communicator.rank() == 0 {
                return communicator.barrier().unwrap_err();
            }
            watch("the other rank's verdict", || communicator.check().err())
        });
        assert!(errors[0].is_timeout() && errors[0].is_connection_lost(), "{errors:?}");
        // Rank 0 has told it, and rank 1 is at fault.
        assert_eq!([errors[0].rank(), errors[1].rank()], [Some(1); 2]);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let text = "rank 1: it did not do its part within 3";
        assert!(errors[0].starts_with(text), "{errors:?}");
        assert!(errors[1].starts_with(&format!("rank 0: {text}")), "{errors:?}");
    }
}

#[test]
fn a_call_that_cannot_be_is_refused_and_harms_nobody() {
    ranks(2, &settings(), |communicator| {
        let error = communicator.all_gather(&[1_u8; 3], &mut [0; 5]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("output of 5 elements"), "{error}");
        let mut sum = [1_u8];
        communicator.all_reduce_in_place(&mut sum, RedOp::Sum).unwrap();
        assert_eq!(sum, [2]);
    });
}

#[test]
fn a_root_or_peer_that_is_no_rank_is_refused_and_harms_nobody() {
    ranks(2, &settings(), |communicator| {
        let mut data = [1_u8];
        let refused = [
            ("the root", communicator.broadcast(&mut data, 2)),
            ("the root", communicator.reduce_in_place(&mut data, RedOp::Sum, 2)),
            ("the peer", communicator.send(&data, 2)),
            ("the peer", communicator.recv(&mut data, 2)),
            ("the peer", communicator.start_send(vec![1_u8], 2).map(drop)),
            ("the peer", communicator.group().recv(&mut data, 2).map(|_| ())),
        ];
        for (what, refused) in refused {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            let text = format!("{what} is rank 2: the communicator has 2, from 0");
            assert_eq!(error.to_string(), text);
        }
        communicator.barrier().unwrap();
    });
}

#[test]
fn an_exchange_that_fails_ends_the_communicator() {
    let settings = settings().connect_timeout(Duration::from_millis(500));
    let errors = ranks(2, &settings, |communicator| {
        if communicator.rank() == 1 {
            watch("the other rank's failure", || communicator.check().is_err());
        }
        // Otherwise rank 1 would take the bytes of rank 0's first exchange for those of this one.
        communicator.exchange(&[7]).unwrap_err()
    });
    assert!(errors.iter().all(|error| error.rank() == Some(1)), "{errors:?}");
}

#[test]
fn an_error_of_one_host_that_ends_the_communicator_is_a_lost_connection_at_every_rank() {
    // Rank 1 listens for rank 0, and its only port is taken.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let settings = over("socket").listen_ports(PortRange::only(port));
    let errors = ranks(2, &settings, |communicator| communicator.barrier().unwrap_err());
    for error in &errors {
        assert!(error.to_string().contains(&format!("port {port} is taken")), "{error}");
        assert!(error.is_connection_lost(), "{error}");
    }
    assert_eq!([errors[0].kind(), errors[1].kind()], [ErrorKind::Peer, ErrorKind::Local]);
}

#[test]
fn a_communicator_cuts_no_message_whatever_the_settings_say() {
    for settings in every_way() {
        let errors = ranks(2, &settings.truncate(true), |communicator| {
            let mut data = vec![1_f32; 100 - 50 * communicator.rank() as usize];
            match communicator.rank() {
                // The message may leave before its receiver refuses it.
                0 => communicator.send(&data, 1).and_then(|()| communicator.barrier()),
                _ => communicator.recv(&mut data, 0),
            }
        });
        assert!(errors.iter().all(Result::is_err), "{errors:?}");
    }
}
