//! The plugin through its tables, as NCCL calls it, with both ends in this process: over TCP.

mod plugin {
    mod connecting;
    mod eager;
    mod late;
    mod lengths;
    mod misuse;
    mod properties;
    mod registration;
    mod rig;
    mod transfers;
}

const TRANSPORT: &str = "socket";
/// What the names of its devices begin with.
const DEVICE: &str = "lo";
