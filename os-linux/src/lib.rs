//! The parts of Linux that Invar uses.
//!
//! The protocol is in `invar-core`, which uses no clock, no socket and no pointer. This crate connects
//! the protocol to the operating system:
//!
//! - [`memory`]: memory that NICs read and write
//! - [`tcp`]: the TCP connections of the handshake
//! - [`soft`]: a NIC in software over [`udp`], with captures of its packets ([`pcap`])
//! - [`socket`]: the transport over TCP for hosts without RDMA
//! - [`rails`]: several ports as one NIC
//! - [`proxy`]: the proxy's threads and shared memory
//! - [`shm`]: memory that processes share
//! - [`rendezvous`]: how ranks find each other
//! - [`interface`]: network interfaces
//! - [`interest`]: how a waiter sleeps until there is news, [`reactor`]: how a task is woken, and [`poller`]:
//!   how a thread waits for many descriptors
//! - [`biased`]: values that one thread uses all the time and another one now and then
//! - [`ports`]: the ports that listeners take
//! - [`own_thread`]: threads that serve their process, and [`fork`]: values that belong to a process
//! - [`processors`], [`random`], [`clock`], [`env`](mod@env): processors, random numbers, the clock and
//!   the environment

pub mod abort;
pub mod biased;
pub mod clock;
pub mod either;
pub mod env;
pub mod fork;
pub mod interest;
pub mod interface;
pub mod memory;
pub mod own_thread;
pub mod pcap;
pub mod pmi;
pub mod poller;
pub mod ports;
pub mod processors;
pub mod proxy;
pub mod rails;
pub mod random;
pub mod reactor;
pub mod recorder;
pub mod rendezvous;
pub mod scrape;
pub mod shm;
pub mod socket;
pub mod soft;
pub mod tcp;
pub mod udp;
mod unix;
