//! The plugin through its tables, as NCCL calls it, with both ends in this process: on the NIC in
//! software.

mod plugin {
    mod connecting;
    mod lengths;
    mod misuse;
    mod properties;
    mod registration;
    mod rig;
    mod transfers;
    mod waiting;
}

const TRANSPORT: &str = "soft";
/// What the names of its devices begin with.
const DEVICE: &str = "soft";
