//! How connections and comms behave, over a NIC without a network. A file for each behaviour.

mod agreed_settings;
mod groups;
mod handshake_failures;
mod handshake_interleavings;
mod meddler;
mod rig;
mod sizes;
mod traffic;
