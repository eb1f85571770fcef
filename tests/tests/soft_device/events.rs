//! Tests the asynchronous events that a device raises.

use invar_core::nic::{QpOptions, SendOpcode, WcStatus};
use invar_linux::soft::device::{AsyncEvent, Subject};

use super::{deliver, pair, target};

#[test]
fn memory_that_goes_away_before_a_read_is_answered_is_an_access_error_at_both_ends() {
    let [mut a, mut b] = pair("::1", 8, QpOptions::empty());
    a.post(a.qpn, SendOpcode::RdmaRead, 8, target(&b));
    a.transmit(0);
    deliver(&mut a, &mut b, 0, |_| false);
    b.device.dereg_mr(b.key).unwrap();
    b.transmit(0);
    deliver(&mut b, &mut a, 0, |_| false);
    assert_eq!(a.poll()[0].status, WcStatus::REM_ACCESS_ERR);
    let raised: Vec<_> = b.device.take_notices().collect();
    assert_eq!(raised, [(Subject::Qp(b.qpn), AsyncEvent::QpAccessError)]);
}
