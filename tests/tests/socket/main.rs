//! Tests the socket transport over loopback: which messages arrive, in which order requests may be
//! tested, and the fate of misbehaving peers.

mod both_ways;
mod closing;
mod congestion;
mod connecting;
mod hostile_peers;
mod lost;
mod matching;
mod rig;
mod silent_peers;
mod transfer;
mod two_processes;
