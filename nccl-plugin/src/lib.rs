//! `libnccl-net-invar.so`: Invar as a network plugin of NCCL.
//!
//! NCCL opens the library that `NCCL_NET_PLUGIN=invar` names and looks up the newest table of
//! functions that it knows ([`abi`], `tables`). All versions are one implementation: `host` says
//! which devices there are, `connect` makes comms, `entry` finds the comm of a call and goes on in `comm`,
//! and `register` registers memory. NCCL holds numbers, which are looked up and checked (`handles`), so a
//! call on a comm that is closed, or never was open, is an error and not a crash.
//!
//! Nothing unwinds into C. A panic becomes `ncclInternalError` and a warning in NCCL's log (`outcome`). The
//! fast paths of `isend`, `irecv` and `test` are the exception: a panic there ends the process, after its
//! text is on standard error.

pub mod abi;
mod comm;
mod connect;
mod entry;
mod handles;
mod host;
mod logger;
mod outcome;
mod profiler;
mod properties;
mod register;
pub mod tables;
