//! Runs the conformance kit on the NIC.

use invar_testkit::conformance::Testbed;
use invar_testkit::nic_conformance;
use unix_nic::UnixNic;

#[test]
fn the_nic_does_everything_that_invar_needs() {
    let open = || UnixNic::open().expect("a NIC");
    nic_conformance(|| Testbed::in_real_time([open(), open()]), &[]);
}
