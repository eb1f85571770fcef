//! Closes ends and registrations while a device still works. The device executes a posted request only
//! after two later polls for completions.

use invar_testkit::fake_cuda::FakeCuda;

use super::rig::*;

/// Several pages: the registered part of one end's memory is not all of the other end's memory.
const MEMORY: usize = 3 * 4096;

/// Makes a slow device that reports failures and does not end the process.
fn slow() -> FakeCuda {
    let fake = FakeCuda::new().with_null_verbs();
    fake.set("NULL_VERBS_STRICT", "0").set("NULL_VERBS_DELAY_POLLS", "2")
}

/// Posts a receive that the sender knows of, and a send to it that the device has not started.
fn under_way(pair: &Pair) -> [*mut c_void; 2] {
    let received = pair.post(&[(0, 64, 5)]);
    let sent = until("a receive", || {
        assert_eq!(test(received), Ok(None));
        let (code, sent) = pair.isend(0, 64, 5);
        assert_eq!(code, Code::SUCCESS);
        (!sent.is_null()).then_some(sent)
    });
    [sent, received]
}

/// Waits until a request has failed.
fn failed(request: *mut c_void) -> Code {
    until("a failure", || match test(request) {
        Ok(done) => {
            assert_eq!(done, None);
            None
        }
        Err(code) => Some(code),
    })
}

/// Checks that the plugin still makes new connections.
fn check_another() {
    let pair = Pair::new(MEMORY);
    let [sent, received] = under_way(&pair);
    assert_eq!(wait(&[sent, received])[1][0], 64);
    assert!(pair.to[..64] == pair.from[..64]);
}

#[test]
fn a_receiver_that_closes_still_tells_of_what_it_has_posted() {
    slow().run(|| {
        let mut pair = Pair::new(MEMORY);
        let _ = pair.post(&[(0, 64, 5)]);
        let (code, early) = pair.isend(0, 64, 5);
        assert_eq!(code, Code::SUCCESS);
        pair.close_recv();
        // The keeper may have found the end of the connection before this call.
        let failure = match (early.is_null(), pair.isend(0, 64, 5)) {
            (false, _) => failed(early),
            (true, (Code::SUCCESS, sent)) => {
                assert!(!sent.is_null(), "the slot has come");
                failed(sent)
            }
            (true, (code, _)) => code,
        };
        assert_eq!(failure, Code::REMOTE_ERROR);
        check_another();
    });
}

#[test]
fn a_sender_that_closes_takes_back_what_it_has_not_sent() {
    slow().run(|| {
        let mut pair = Pair::new(MEMORY);
        let [_, received] = under_way(&pair);
        pair.close_send();
        assert_eq!(failed(received), Code::REMOTE_ERROR);
        pair.close_recv();
        assert!(pair.to.iter().all(|byte| *byte == 0));
        check_another();
    });
}

#[test]
fn a_receiver_that_closes_fails_what_is_on_its_way_to_it() {
    slow().run(|| {
        let mut pair = Pair::new(MEMORY);
        let [sent, _] = under_way(&pair);
        pair.close_recv();
        assert_eq!(failed(sent), Code::REMOTE_ERROR);
        pair.close_send();
        assert!(pair.to.iter().all(|byte| *byte == 0));
        check_another();
    });
}

#[test]
fn memory_that_is_deregistered_is_not_sent_from_any_more() {
    slow().run(|| {
        let mut pair = Pair::new(MEMORY);
        let [sent, received] = under_way(&pair);
        dereg(pair.send, &mut pair.from_mr);
        assert_eq!(failed(sent), Code::SYSTEM_ERROR);
        // The sender tells the receiver at once, and the receiver's keeper may have heard of it.
        assert!(matches!(test(received), Ok(None) | Err(Code::REMOTE_ERROR)));
        assert!(pair.to.iter().all(|byte| *byte == 0));
        drop(pair);
        check_another();
    });
}

#[test]
fn memory_that_is_deregistered_is_not_received_into_any_more() {
    slow().run(|| {
        let mut pair = Pair::new(MEMORY);
        let [sent, _] = under_way(&pair);
        dereg(pair.recv, &mut pair.to_mr);
        assert_eq!(failed(sent), Code::REMOTE_ERROR);
        assert!(pair.to.iter().all(|byte| *byte == 0));
        drop(pair);
        check_another();
    });
}
