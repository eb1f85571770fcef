//! Runs the NIC conformance kit on the libibverbs adapter.

use invar_testkit::conformance::Testbed;
use invar_testkit::nic_conformance;

use crate::on_devices;

#[test]
fn the_adapter_passes_on_roce_and_infiniband() {
    on_devices(|nics| {
        nic_conformance(|| Testbed::in_real_time(nics.clone()), &[]);
    });
}
