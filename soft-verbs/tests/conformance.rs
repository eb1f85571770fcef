//! The adapter for libibverbs runs on the library, and passes the kit that every NIC has to pass.

use invar_testkit::child;
use invar_testkit::conformance::Testbed;
use invar_testkit::nic_conformance;
use invar_verbs::{VerbsConfig, VerbsNic, device_names};

#[test]
fn rdma_devices_of_the_library_pass_the_conformance_kit() {
    let library = std::env::current_exe().unwrap().with_file_name("libinvar_soft_verbs.so");
    child::run(
        |process| {
            process
                .envs([("LD_PRELOAD", library.as_os_str()), ("INVAR_SOFT_DEVICES", "lo".as_ref())]);
        },
        || {
            let devices = device_names().expect("names of RDMA devices");
            let [name] = &devices[..] else { panic!("the loopback device alone: {devices:?}") };
            let open = || VerbsNic::open(&VerbsConfig::new(name)).expect("an RDMA device");
            nic_conformance(|| Testbed::in_real_time([open(), open()]), &[]);
        },
    );
}
