//! NCCL's InfiniBand/RoCE network protocol as pure state machines: no std, no alloc, no unsafe.
//!
//! Read the modules in the order in which a message passes them:
//!
//! 0. [`conn`] — a listener makes a handle. Both ends prove that they know its secret ([`auth`]). Both
//!    exchange queue pair numbers, addresses and keys over TCP, and step through the stages to a
//!    [`comm::SendComm`] and a [`comm::RecvComm`].
//! 1. [`request`] — `irecv` takes a request; `isend` takes one when a matching slot has arrived.
//! 2. [`fifo`] — the receiver writes slots into the sender's memory, and the sender reads them.
//! 3. [`comm`] — the sender matches each send by tag and posts RDMA WRITEs that end with one
//!    WRITE_WITH_IMM.
//! 4. [`nic`] — the interface that a NIC implements. [`roce`] is the protocol of a software NIC.
//! 5. [`error`] — completions in error, and all other errors.
//!
//! On hosts without RDMA, [`socket`] replaces steps 2 to 4. On top of the comms, [`proxy`] moves the
//! data of collectives and point-to-point transfers. [`coll`] gives each rank its steps of a
//! collective, and [`rendezvous`] brings the ranks of a communicator together.
//!
//! Further modules: [`param`] has the user's settings, and [`device`] the rules for device names, links
//! and cards. [`mr_cache`] keeps memory registrations, [`staging`] passes GPU memory through host
//! memory, [`topology`] has the neighbours of a rank, and [`math`] divides sizes. [`bias`] lets a second
//! thread look after a comm now and then. [`stall`] finds out why a connection stands still,
//! [`recorder`] has the records of the flight recorder, [`peer_clock`] reckons the offset of a peer's
//! clock, and [`metrics`] counts.
#![no_std]
#![forbid(unsafe_code)]

// The `log` module comes first because all later modules use its macros.
#[macro_use]
mod log;

pub mod auth;
pub mod bias;
pub mod coll;
pub mod comm;
pub mod conn;
pub mod device;
pub mod error;
pub mod fifo;
pub mod hex;
mod inbox;
pub mod math;
pub mod metrics;
pub mod mr_cache;
#[cfg(feature = "mutants")]
pub mod mutant;
#[cfg(not(feature = "mutants"))]
#[allow(dead_code, unreachable_pub, reason = "nothing plants a bug")]
mod mutant;
pub mod nic;
pub mod param;
pub mod peer_clock;
pub mod proxy;
pub mod recorder;
pub mod rendezvous;
pub mod request;
pub mod roce;
mod secret;
pub mod socket;
pub mod staging;
pub mod stall;
pub mod topology;
