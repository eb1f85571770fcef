//! `libnccl-net-invar.so`: Invar as a network plugin of NCCL.
//!
//! NCCL opens the library that `NCCL_NET_PLUGIN=invar` names and looks up the newest function table that
//! it supports ([`abi`], `tables`). One implementation serves all versions of the table:
//!
//! - `host` lists the devices, which are `net_device`s, and `virtual_device` joins them.
//! - `connect` makes connections.
//! - `lifetime` stores their ends as comms, and closes comms.
//! - `entry` finds the comm of a call and passes the call to `comm`.
//! - `register` registers memory.
//! - `handles` maps the numbers that NCCL holds to comms. It checks each number, so a call on a closed
//!   or unknown comm returns an error and does not crash.
//! - `registry` numbers all other objects, which no fast path looks up.
//! - `collnet` is the other half of the interface: collectives that hosts reduce.
//! - `finalize` ends contexts of both halves.
//! - `request` and `mhandle` lay out the numbers of requests and registrations.
//!
//! No panic unwinds into C. `outcome` turns a panic into `ncclInternalError` and a warning in NCCL's
//! log. The fast paths of `isend`, `irecv` and `test` are the exception: a panic there prints its text
//! to standard error and ends the process.

pub mod abi;
mod collnet;
mod comm;
mod connect;
mod context;
mod entry;
mod finalize;
mod handles;
mod host;
mod lifetime;
mod logger;
mod mhandle;
mod net_device;
mod outcome;
mod profiler;
mod properties;
mod register;
mod registry;
mod request;
pub mod tables;
mod virtual_device;
