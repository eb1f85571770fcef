//! Tests the device properties of each version.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use invar_testkit::fake_cuda::FakeCuda;
use invar_testkit::sysfs::Tree;
use nccl_net_invar::abi::{Net, Version};
use nccl_net_invar::tables::*;

use super::rig::*;

fn properties<V: Version>(table: &Net<V>, device: c_int) -> V::Properties {
    init();
    let mut properties = MaybeUninit::uninit();
    // SAFETY: `properties` has room for the properties.
    let code = unsafe { (table.get_properties)(device, properties.as_mut_ptr()) };
    assert_eq!(code, Code::SUCCESS);
    // SAFETY: The successful call has written the properties.
    unsafe { properties.assume_init() }
}

/// A field of a device's properties in each version.
macro_rules! in_each_version {
    ($device:expr, $field:ident) => {
        [
            properties(&ncclNetPlugin_v6, $device).$field,
            properties(&ncclNetPlugin_v7, $device).$field,
            properties(&ncclNetPlugin_v8, $device).$field,
            properties(&ncclNetPlugin_v9, $device).$field,
            properties(&ncclNetPlugin_v10, $device).$field,
            properties(&ncclNetPlugin_v11, $device).$field,
            properties(&ncclNetPlugin_v12, $device).$field,
        ]
    };
}

fn text(c_string: *const c_char) -> &'static str {
    assert!(!c_string.is_null());
    // SAFETY: The plugin's texts are C strings that stay valid.
    unsafe { CStr::from_ptr(c_string) }.to_str().expect("UTF-8")
}

/// Four devices and the tree that describes them. The first two are functions of one PCI device, and the third
/// is a virtual function of the same card.
fn cards(merge_vfs: &str) -> (FakeCuda, Tree) {
    let tree = Tree::empty();
    let functions = ["3b:00.0", "3b:00.1", "3b:12.1", "5e:00.0"];
    for (number, function) in functions.iter().enumerate() {
        let path = format!("devices/pci0000:3a/0000:{function}");
        tree.rdma_device(&format!("null{number}"), &path, 0);
    }
    let fake = FakeCuda::new().with_null_verbs().set("NULL_VERBS_DEVICES", "4");
    let sysfs = tree.root().display().to_string();
    let fake = fake.set("INVAR_TRANSPORT", "ib").set("INVAR_SYSFS", sysfs);
    (fake.set("NCCL_IB_MERGE_VFS", merge_vfs), tree)
}

/// Compares the PCI function and the port that each device has in every version.
fn check_cards(expected: [(&str, c_int); 4]) {
    for (device, (function, port)) in (0..).zip(expected) {
        for path in in_each_version!(device, pci_path) {
            let path = text(path);
            assert!(path.ends_with(&format!("/pci0000:3a/0000:{function}")), "{device} {path}");
        }
        assert_eq!(in_each_version!(device, port), [port; 7], "{device}");
    }
}

#[test]
fn nccl_is_told_that_virtual_functions_are_part_of_their_card() {
    let (fake, _tree) = cards("1");
    fake.run(|| check_cards([("3b:00.0", 1), ("3b:00.0", 2), ("3b:00.0", 3), ("5e:00.0", 1)]));
}

#[test]
fn a_user_may_keep_virtual_functions_apart_from_their_card() {
    let (fake, _tree) = cards("0");
    fake.run(|| check_cards([("3b:00.0", 1), ("3b:00.0", 2), ("3b:12.0", 1), ("5e:00.0", 1)]));
}

#[test]
fn every_version_has_one_loopback_device_and_its_name() {
    init();
    let mut ndev = 0;
    // SAFETY: `ndev` has room for a number.
    assert_eq!(unsafe { (net.devices)(&mut ndev) }, Code::SUCCESS);
    assert_eq!(ndev, 1);
    for name in in_each_version!(0, name) {
        assert!(text(name).starts_with(crate::DEVICE), "{}", text(name));
    }
}

#[test]
fn the_newest_version_tells_the_rail_and_the_plane_that_the_user_names() {
    let (fake, _tree) = cards("0");
    fake.set("NCCL_IB_HCA", "null0:1:3:7,null1::3,null2:1,null3").run(|| {
        let told = (0..4).map(|device| properties(&ncclNetPlugin_v12, device));
        let told: Vec<_> = told.map(|told| (told.rail_id, told.plane_id)).collect();
        assert_eq!(told, [(3, 7), (3, -1), (-1, -1), (-1, -1)]);
    });
}

/// Over TCP the receiver's end is complete before the sender's, so NCCL may share no comms there.
#[test]
fn nccl_may_share_comms_where_the_sender_is_complete_first() {
    let told = if crate::TRANSPORT == "socket" { 1 } else { 8 };
    assert_eq!(in_each_version!(0, max_recvs), [told; 7]);
}

#[test]
fn the_newest_version_tells_all() {
    let told = properties(&ncclNetPlugin_v12, 0);
    assert!(told.pci_path.is_null());
    assert_eq!((told.ptr_support, told.reg_is_global, told.force_flush), (PTR_HOST, 1, 0));
    assert_eq!((told.speed, told.max_comms), (SPEED_MBPS, 65_535));
    assert_eq!((told.net_device_type, told.net_device_version), (0, 0));
    assert_eq!((told.v_props.ndevs, told.v_props.devs[0]), (1, 0));
    assert_eq!((told.max_p2p_bytes, told.max_coll_bytes), (1 << 30, 32 << 20));
    assert_eq!((told.max_multi_request_size, told.rail_id, told.plane_id), (1, -1, -1));
}
