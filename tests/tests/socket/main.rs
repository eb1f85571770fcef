//! The socket transport over loopback: what arrives, in which order it may be asked for, and what
//! a peer that misbehaves comes to.

mod both_ways;
mod closing;
mod congestion;
mod connecting;
mod hostile_peers;
mod matching;
mod rig;
mod silent_peers;
mod transfer;
mod two_processes;
