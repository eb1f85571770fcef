//! NCCL's InfiniBand/RoCE network protocol as pure state machines.
#![no_std]
#![forbid(unsafe_code)]

pub mod nic;
pub mod roce;
