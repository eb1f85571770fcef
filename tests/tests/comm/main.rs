//! Tests how connections and comms behave over a NIC without a network. Each behaviour has a file.

mod agreed_settings;
mod clocks;
mod close_notice;
mod closing;
mod ece;
mod failures;
mod groups;
mod handshake_failures;
mod handshake_interleavings;
mod hostile_peers;
mod line;
mod meddler;
mod nccl_wire;
mod ports;
mod queue_pairs;
mod rail_events;
mod raw_peer;
mod recovery;
mod recovery_interleavings;
mod requests;
mod rig;
mod sizes;
mod traffic;
mod work;
