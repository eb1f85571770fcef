//! Tests links between ranks over the network.

mod failures;
mod rig;
mod transfer;
