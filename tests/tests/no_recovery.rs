//! Connections whose queue pairs are not replaced by new ones warn once in a process.

use invar_core::conn::{CommSettings, Wire};
use invar_testkit::null::NullNic;
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
