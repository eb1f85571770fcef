//! NCCL's InfiniBand/RoCE network protocol as pure state machines: no std, no alloc, no unsafe.
//!
//! The crate reads in the order in which a message goes:
//!
//! 0. [`conn`] — a listener makes a handle; the two sides prove that they know its secret ([`auth`]), exchange queue pair numbers, addresses
//!    and keys over TCP and step through the stages to a [`comm::SendComm`] and a
//!    [`comm::RecvComm`].
//! 1. [`request`] — `irecv` takes a request, and so does `isend` when a matching slot is there.
//! 2. [`fifo`] — the receiver writes slots into the sender's memory; the sender sees them.
//! 3. [`comm`] — the sender matches by tag and posts RDMA WRITEs that end in one
//!    WRITE_WITH_IMM.
//! 4. [`nic`] — the seam: what a NIC must do. [`roce`] is the protocol of a NIC in software.
//! 5. [`error`] — completions in error, and all else that can go wrong.
//!
//! Where there is no RDMA, [`socket`] takes the place of 2 to 4.
//! Above 1: [`proxy`] moves the data of collectives and point-to-point transfers over such comms;
//! [`coll`] says what of a collective each rank does, step by step.
//!
//! [`rendezvous`] brings the ranks of a communicator together.
//!
//! Beside that way: [`param`] is what a user may set, [`device`] the rules about device names,
//! links and cards, [`mr_cache`] keeps registrations, [`staging`] passes GPU memory through the
//! host's, [`math`] cuts sizes.
#![no_std]
#![forbid(unsafe_code)]

// First: its macros are for every module after it.
#[macro_use]
mod log;

pub mod auth;
pub mod coll;
pub mod comm;
pub mod conn;
pub mod device;
pub mod error;
pub mod fifo;
mod inbox;
pub mod math;
pub mod mr_cache;
pub mod nic;
pub mod param;
pub mod proxy;
pub mod rendezvous;
pub mod request;
pub mod roce;
pub mod socket;
pub mod staging;
