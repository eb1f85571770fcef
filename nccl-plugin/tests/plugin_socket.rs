//! Tests the plugin through its function tables, as NCCL calls it, with both ends in this process, over
//! TCP.

mod plugin {
    mod collnet_proxy;
    mod connecting;
    mod eager;
    mod late;
    mod lengths;
    mod misuse;
    mod properties;
    mod registration;
    mod rig;
    mod transfers;
    mod versions;
}

const TRANSPORT: &str = "socket";
/// Prefix of the device names.
const DEVICE: &str = "lo";
