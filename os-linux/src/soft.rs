//! A RoCEv2 NIC in software: RDMA without RDMA hardware.

pub mod device;

pub use device::{Device, DeviceConfig, DeviceCounters, Train, TransmitSink};
