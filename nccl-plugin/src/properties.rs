//! The properties of a device in the layout of each version.

use std::ffi::c_int;
use std::ptr;

use invar::{DeviceInfo, DeviceKind};

use crate::abi::{
    Code, PropertiesV6, PropertiesV7, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
    VDeviceProps,
};
use crate::handles::COMMS_MAX;
use crate::host;
use crate::net_device::NetDevice;
use crate::outcome::{Failed, call, null};

/// Speed in megabits per second that the plugin reports for a link of unknown speed.
const SPEED_MBPS: u32 = 10_000;
/// Maximum length of a message that the plugin reports to NCCL, in bytes. A work request could carry
/// almost twice as much. But NCCL cuts longer messages into pieces of this size, and a power of two
/// keeps the pieces aligned.
const P2P_BYTES_MAX: usize = 1 << 30;
/// Maximum length of a collective that the plugin reports to NCCL, in bytes. GPU memory of this length
/// passes through pinned host memory as a whole. NCCL has up to eight pieces of a longer collective in
/// progress, so copies and reductions overlap.
const COLL_BYTES_MAX: usize = 32 << 20;
/// `NCCL_NET_ID_UNDEF`: NCCL ignores the rail or the plane. Only `NCCL_IB_HCA` tells them, since neither PCI nor
/// addresses show how a network is built.
const UNDEFINED: i16 = -1;

/// `getProperties`.
pub(crate) unsafe extern "C" fn get_properties<P: Describe>(
    device: c_int,
    properties: *mut P,
) -> Code {
    call(|| {
        if properties.is_null() {
            return Err(null("getProperties: properties"));
        }
        let host = host::get()?;
        let device = host.device(device)?;
        // SAFETY: NCCL promises that `properties` has room for the properties.
        unsafe { properties.write(P::describe(&device)) };
        Ok(())
    })
}

/// `getProperties` of collNet. NCCL keeps one entry for a NIC, and takes collNet's properties for those of
/// the network too (`topo.cc`), so both are the same.
pub(crate) unsafe extern "C" fn get_properties_of_collnet<P: Describe>(
    device: c_int,
    properties: *mut P,
) -> Code {
    call(|| {
        host::with_collnet()?;
        // SAFETY: The caller upholds this function's safety contract.
        match unsafe { get_properties(device, properties) } {
            Code::SUCCESS => Ok(()),
            code => Err(Failed(code)),
        }
    })
}

/// Describes a device in the layout of one version of the interface.
pub(crate) trait Describe {
    fn describe(device: &NetDevice) -> Self;
}

/// The value of a field that not all versions have.
macro_rules! value {
    (reg_is_global, $device:ident) => {
        1
    };
    (force_flush, $device:ident) => {
        0
    };
    (net_device_type, $device:ident) => {
        0
    };
    (net_device_version, $device:ident) => {
        0
    };
    (v_props, $device:ident) => {
        members($device)
    };
    (max_p2p_bytes, $device:ident) => {
        P2P_BYTES_MAX
    };
    (max_coll_bytes, $device:ident) => {
        COLL_BYTES_MAX
    };
    (max_multi_request_size, $device:ident) => {
        1
    };
    (rail_id, $device:ident) => {
        $device.info.rail_id.unwrap_or(UNDEFINED)
    };
    (plane_id, $device:ident) => {
        $device.info.plane_id.unwrap_or(UNDEFINED)
    };
}

/// Implements `Describe` for a version: the fields that all versions share, and the version's own.
macro_rules! describe {
    ($($name:ident { $($field:ident)* })+) => { $(
        impl Describe for $name {
            fn describe(device: &NetDevice) -> Self {
                let speed = device.info.speed_mbps.unwrap_or(SPEED_MBPS);
                let qps_max = device.info.qps_max.map_or(usize::MAX, |qps| qps as usize);
                $name {
                    name: device.name.as_ptr(),
                    pci_path: device.pci_path.map_or(ptr::null(), |path| path.as_ptr()),
                    guid: device.guid,
                    ptr_support: device.ptr_support,
                    speed: c_int::try_from(speed).unwrap_or(c_int::MAX),
                    port: device.info.card_port as c_int,
                    latency: 0.0,
                    max_comms: COMMS_MAX.min(qps_max) as c_int,
                    max_recvs: max_recvs(&device.info),
                    $($field: value!($field, device),)*
                }
            }
        }
    )+ };
}

describe! {
    PropertiesV6 {}
    PropertiesV7 { net_device_type net_device_version }
    PropertiesV8 { reg_is_global net_device_type net_device_version }
    PropertiesV9 {
        reg_is_global force_flush net_device_type net_device_version v_props max_p2p_bytes
        max_coll_bytes
    }
    PropertiesV11 {
        reg_is_global force_flush net_device_type net_device_version v_props max_p2p_bytes
        max_coll_bytes max_multi_request_size
    }
    PropertiesV12 {
        reg_is_global force_flush net_device_type net_device_version v_props max_p2p_bytes
        max_coll_bytes max_multi_request_size rail_id plane_id
    }
}

/// The most buffers of a receive that NCCL may ask for. Above 1 NCCL shares a comm among connections of a proxy. The
/// receiver takes the first connection that is complete, and closes the listening comms of the others (`net.cc
/// recvProxyConnect`). So the sender must be complete first. On a NIC it is: the acceptor waits for the ready word.
/// Over TCP the acceptor is complete first, so NCCL must not share comms there. NCCL's sockets report 1 too
/// (`net_socket.cc ncclNetSocketGetProperties`).
fn max_recvs(info: &DeviceInfo) -> c_int {
    match info.kind {
        DeviceKind::Socket => 1,
        _ => info.recvs_max as c_int,
    }
}

/// The devices that a device consists of. No version joins more devices than it can list.
fn members<const DEVS_MAX: usize>(device: &NetDevice) -> VDeviceProps<DEVS_MAX> {
    let mut devs = [0; DEVS_MAX];
    devs.iter_mut().zip(&device.members).for_each(|(dev, member)| *dev = *member);
    VDeviceProps { ndevs: device.members.len().min(DEVS_MAX) as c_int, devs }
}
