//! The parts of Linux that Invar uses.
//!
//! The protocol is in `invar-core` and touches no clock, no socket, no pointer. This crate wires
//! it to the operating system: [`memory`] that NICs read and write, [`tcp`] for the handshake,
//! a NIC in software ([`soft`]) over [`udp`] and captures of its packets ([`pcap`]), the transport
//! over TCP for hosts without RDMA ([`socket`]), what the [`proxy`] needs, memory that processes
//! share ([`shm`]), how ranks find together ([`rendezvous`]), network [`interface`]s, the
//! [`ports`] that listeners take, the [`processors`], [`random`] numbers, the [`clock`] and the
//! [`env`](mod@env)ironment.

pub mod clock;
pub mod env;
pub mod interface;
pub mod memory;
pub mod pcap;
pub mod ports;
pub mod processors;
pub mod proxy;
pub mod random;
pub mod rendezvous;
pub mod shm;
pub mod socket;
pub mod soft;
pub mod tcp;
pub mod udp;
mod unix;
