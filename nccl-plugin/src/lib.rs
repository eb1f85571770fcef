//! `libnccl-net-invar.so`: Invar as a network plugin of NCCL.
//!
//! NCCL opens the library that `NCCL_NET_PLUGIN=invar` names and looks up the newest table of
//! functions that it knows ([`abi`], `tables`). All versions are one implementation: `host` says
//! which devices there are, `connect` makes comms, `entry` is the data path and goes on in `comm`, and
//! `register` registers memory. What NCCL holds are numbers that are looked up and checked (`handles`), not
//! addresses, so that a comm that is closed already, or never was one, is an error and not a
//! crash.
//!
//! Nothing unwinds into C. A panic becomes `ncclInternalError` and a warning in NCCL's log (`outcome`),
//! but for the usual part of `isend`, `irecv` and `test`, which catches nothing so as to cost
//! nothing: each of its functions is `extern "C"`, and a panic there ends the process where it leaves
//! that function, after its text is on standard error.

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
