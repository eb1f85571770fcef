//! Tests the plugin through its function tables, as NCCL calls it, with both ends in this process, on
//! the software NIC.

mod plugin {
    mod collnet_proxy;
    mod connecting;
    mod lengths;
    mod misuse;
    mod properties;
    mod registration;
    mod rig;
    mod transfers;
    mod versions;
    mod waiting;
}

const TRANSPORT: &str = "soft";
/// Prefix of the device names.
const DEVICE: &str = "soft";
