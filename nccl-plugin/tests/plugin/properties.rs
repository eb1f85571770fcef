//! Tests the device properties of each version.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use nccl_net_invar::abi::{Net, Version};
use nccl_net_invar::tables::*;

use super::rig::*;

fn properties<V: Version>(table: &Net<V>) -> V::Properties {
    init();
    let mut properties = MaybeUninit::uninit();
    // SAFETY: `properties` has room for the properties.
    let code = unsafe { (table.get_properties)(0, properties.as_mut_ptr()) };
    assert_eq!(code, Code::SUCCESS);
    // SAFETY: The successful call has written the properties.
    unsafe { properties.assume_init() }
}

#[test]
fn every_version_has_one_loopback_device_and_its_name() {
    init();
    let mut ndev = 0;
    // SAFETY: `ndev` has room for a number.
    assert_eq!(unsafe { (net.devices)(&mut ndev) }, Code::SUCCESS);
    assert_eq!(ndev, 1);
    let names = [
        properties(&ncclNetPlugin_v6).name,
        properties(&ncclNetPlugin_v7).name,
        properties(&ncclNetPlugin_v8).name,
        properties(&ncclNetPlugin_v9).name,
        properties(&ncclNetPlugin_v10).name,
        properties(&ncclNetPlugin_v11).name,
        properties(&ncclNetPlugin_v12).name,
    ];
    for name in names {
        // SAFETY: The name is a C string that stays valid.
        let name = unsafe { CStr::from_ptr(name) };
        assert!(name.to_str().unwrap().starts_with(crate::DEVICE), "{name:?}");
    }
}

#[test]
fn the_newest_version_tells_all() {
    let told = properties(&ncclNetPlugin_v12);
    assert!(told.pci_path.is_null());
    assert_eq!((told.ptr_support, told.reg_is_global, told.force_flush), (PTR_HOST, 1, 0));
    assert_eq!((told.speed, told.max_comms), (SPEED_MBPS, 65_535));
    assert_eq!(told.max_recvs, 8);
    assert_eq!((told.net_device_type, told.net_device_version), (0, 0));
    assert_eq!((told.v_props.ndevs, told.v_props.devs[0]), (1, 0));
    assert_eq!((told.max_p2p_bytes, told.max_coll_bytes), (1 << 30, 32 << 20));
    assert_eq!((told.max_multi_request_size, told.rail_id, told.plane_id), (1, -1, -1));
}
