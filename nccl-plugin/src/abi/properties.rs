//! `ncclNetProperties_v*_t`: what a plugin tells about a device.

use std::ffi::{c_char, c_int};

use static_assertions::const_assert_eq;

/// `ncclNetVDeviceProps_v*_t`: the physical devices that one is made of.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VDeviceProps<const DEVS_MAX: usize> {
    /// How many.
    pub ndevs: c_int,
    /// Their numbers.
    pub devs: [c_int; DEVS_MAX],
}

/// The fields that start with `name`, up to and with `guid`, are the same in all versions; so are
/// those from `speed` to `maxRecvs`.
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
            /// For logs.
            pub name: *const c_char,
            /// Its directory in /sys; null where it is not on a PCI bus.
            pub pci_path: *const c_char,
            /// Of the card: devices of one guid share a port to the network.
            pub guid: u64,
            /// What memory can be registered: [`PTR_HOST`](super::PTR_HOST),
            /// [`PTR_CUDA`](super::PTR_CUDA) and [`PTR_DMABUF`](super::PTR_DMABUF), added up.
            pub ptr_support: c_int,
            $($(#[$before_doc])* pub $before: $before_type,)*
            /// Megabits a second.
            pub speed: c_int,
            /// Port number on the card.
            pub port: c_int,
            /// Microseconds; 0 where it is not known.
            pub latency: f32,
            /// Connections there can be.
            pub max_comms: c_int,
            /// Buffers of a grouped receive.
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
        /// Offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, for none.
        net_device_type: c_int,
        /// Its version.
        net_device_version: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v8_t`.
    PropertiesV8 {
        /// Whether a registration is good for every comm of the device.
        reg_is_global: c_int,
    } {
        /// Offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, for none.
        net_device_type: c_int,
        /// Its version.
        net_device_version: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v9_t` and `_v10_t`.
    PropertiesV9 {
        /// Whether a registration is good for every comm of the device.
        reg_is_global: c_int,
        /// Whether received GPU memory must be flushed whatever the GPU.
        force_flush: c_int,
    } {
        /// Offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, for none.
        net_device_type: c_int,
        /// Its version.
        net_device_version: c_int,
        /// The device itself.
        v_props: VDeviceProps<4>,
        /// Longest message.
        max_p2p_bytes: usize,
        /// Longest message of a collective.
        max_coll_bytes: usize,
    }
}

properties! {
    /// `ncclNetProperties_v11_t`.
    PropertiesV11 {
        /// Whether a registration is good for every comm of the device.
        reg_is_global: c_int,
        /// Whether received GPU memory must be flushed whatever the GPU.
        force_flush: c_int,
    } {
        /// Offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, for none.
        net_device_type: c_int,
        /// Its version.
        net_device_version: c_int,
        /// The device itself.
        v_props: VDeviceProps<4>,
        /// Longest message.
        max_p2p_bytes: usize,
        /// Longest message of a collective.
        max_coll_bytes: usize,
        /// Requests that may be given as one.
        max_multi_request_size: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v12_t`. A virtual device may have eight physical ones from here on.
    PropertiesV12 {
        /// Whether a registration is good for every comm of the device.
        reg_is_global: c_int,
        /// Whether received GPU memory must be flushed whatever the GPU.
        force_flush: c_int,
    } {
        /// Offload to the GPU: 0, `NCCL_NET_DEVICE_HOST`, for none.
        net_device_type: c_int,
        /// Its version.
        net_device_version: c_int,
        /// The device itself.
        v_props: VDeviceProps<8>,
        /// Longest message.
        max_p2p_bytes: usize,
        /// Longest message of a collective.
        max_coll_bytes: usize,
        /// Requests that may be given as one.
        max_multi_request_size: c_int,
        /// Rail that the device is on, or -1.
        rail_id: i16,
        /// Plane that the device is on, or -1.
        plane_id: i16,
    }
}

const_assert_eq!(size_of::<PropertiesV6>(), 48);
const_assert_eq!(size_of::<PropertiesV7>(), 56);
const_assert_eq!(size_of::<PropertiesV8>(), 64);
const_assert_eq!(size_of::<PropertiesV9>(), 104);
const_assert_eq!(size_of::<PropertiesV11>(), 112);
const_assert_eq!(size_of::<PropertiesV12>(), 128);
