//! `ncclNetProperties_v*_t`: the description of a device that a plugin returns to NCCL.

use std::ffi::{c_char, c_int};

use static_assertions::const_assert_eq;

/// `ncclNetVDeviceProps_v*_t`: the physical devices that a virtual device consists of.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VDeviceProps<const DEVS_MAX: usize> {
    /// Number of physical devices.
    pub ndevs: c_int,
    /// NCCL's numbers of the physical devices.
    pub devs: [c_int; DEVS_MAX],
}

/// Defines one version of the properties. All versions share the fields from `name` to `ptrSupport` and
/// the fields from `speed` to `maxRecvs`; the arguments are the fields between and after them.
macro_rules! properties {
    (
        $(#[$doc:meta])* $name:ident
        { $($(#[$before_doc:meta])* $before:ident: $before_type:ty,)* }
        { $($(#[$after_doc:meta])* $after:ident: $after_type:ty,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            /// Name of the device, for logs.
            pub name: *const c_char,
            /// Directory of the PCI device in /sys; null if the device is not on a PCI bus.
            pub pci_path: *const c_char,
            /// GUID of the card; devices with the same GUID share a network port.
            pub guid: u64,
            /// Kinds of memory that the device can register: the sum of [`PTR_HOST`](super::PTR_HOST),
            /// [`PTR_CUDA`](super::PTR_CUDA) and [`PTR_DMABUF`](super::PTR_DMABUF).
            pub ptr_support: c_int,
            $($(#[$before_doc])* pub $before: $before_type,)*
            /// Speed in megabits per second.
            pub speed: c_int,
            /// Port number on the card.
            pub port: c_int,
            /// Latency in microseconds; 0 if the latency is unknown.
            pub latency: f32,
            /// Maximum number of connections.
            pub max_comms: c_int,
            /// Maximum number of buffers in a grouped receive.
            pub max_recvs: c_int,
            $($(#[$after_doc])* pub $after: $after_type,)*
        }
    };
}

properties! {
    /// `ncclNetProperties_v6_t`.
    PropertiesV6 {} {}
}

properties! {
    /// `ncclNetProperties_v7_t`.
    PropertiesV7 {} {
        /// Type of the offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, means no offload.
        net_device_type: c_int,
        /// Version of the offload.
        net_device_version: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v8_t`.
    PropertiesV8 {
        /// Whether a registration is valid for all comms of the device.
        reg_is_global: c_int,
    } {
        /// Type of the offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, means no offload.
        net_device_type: c_int,
        /// Version of the offload.
        net_device_version: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v9_t` and `_v10_t`.
    PropertiesV9 {
        /// Whether a registration is valid for all comms of the device.
        reg_is_global: c_int,
        /// Whether NCCL must flush received GPU memory on every GPU model.
        force_flush: c_int,
    } {
        /// Type of the offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, means no offload.
        net_device_type: c_int,
        /// Version of the offload.
        net_device_version: c_int,
        /// Physical devices of this device. A device that NCCL has not joined consists of itself alone.
        v_props: VDeviceProps<4>,
        /// Maximum length of a point-to-point message in bytes.
        max_p2p_bytes: usize,
        /// Maximum length of a collective's message in bytes.
        max_coll_bytes: usize,
    }
}

properties! {
    /// `ncclNetProperties_v11_t`.
    PropertiesV11 {
        /// Whether a registration is valid for all comms of the device.
        reg_is_global: c_int,
        /// Whether NCCL must flush received GPU memory on every GPU model.
        force_flush: c_int,
    } {
        /// Type of the offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, means no offload.
        net_device_type: c_int,
        /// Version of the offload.
        net_device_version: c_int,
        /// Physical devices of this device. A device that NCCL has not joined consists of itself alone.
        v_props: VDeviceProps<4>,
        /// Maximum length of a point-to-point message in bytes.
        max_p2p_bytes: usize,
        /// Maximum length of a collective's message in bytes.
        max_coll_bytes: usize,
        /// Maximum number of requests that NCCL may pass as one.
        max_multi_request_size: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v12_t`. Since this version a virtual device has up to eight physical devices.
    PropertiesV12 {
        /// Whether a registration is valid for all comms of the device.
        reg_is_global: c_int,
        /// Whether NCCL must flush received GPU memory on every GPU model.
        force_flush: c_int,
    } {
        /// Type of the offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, means no offload.
        net_device_type: c_int,
        /// Version of the offload.
        net_device_version: c_int,
        /// Physical devices of this device. A device that NCCL has not joined consists of itself alone.
        v_props: VDeviceProps<8>,
        /// Maximum length of a point-to-point message in bytes.
        max_p2p_bytes: usize,
        /// Maximum length of a collective's message in bytes.
        max_coll_bytes: usize,
        /// Maximum number of requests that NCCL may pass as one.
        max_multi_request_size: c_int,
        /// Rail of the device, or -1 if the rail is unknown.
        rail_id: i16,
        /// Plane of the device, or -1 if the plane is unknown.
        plane_id: i16,
    }
}

const_assert_eq!(size_of::<PropertiesV6>(), 48);
const_assert_eq!(size_of::<PropertiesV7>(), 56);
const_assert_eq!(size_of::<PropertiesV8>(), 64);
const_assert_eq!(size_of::<PropertiesV9>(), 104);
const_assert_eq!(size_of::<PropertiesV11>(), 112);
const_assert_eq!(size_of::<PropertiesV12>(), 128);
