//! How connections and comms behave, over a NIC without a network. A file for each behaviour.

mod handshake_interleavings;
mod rig;
mod traffic;
