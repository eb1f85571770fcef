//! Tests links between ranks over the network.

mod failures;
mod processes;
mod rig;
mod silence;
mod transfer;
