//! Comms: the two ends of a connection that is up.
//!
//! A [`RecvComm`] posts receives: one request for up to eight buffers, a receive work request on
//! each queue pair, and a row of FIFO slots written to the peer. A [`SendComm`] matches sends
//! against those rows by tag and writes the data straight to where it belongs. Both give a
//! [`Request`], and `test` says when it is done (`net_ib.cc ncclIbIsend`, `ncclIbIrecv`,
//! `ncclIbTest`).

mod base;
mod closing;
mod flush;
mod group;
mod notice;
mod post;
mod recv;
mod route;
mod send;
mod sizes;
mod work;

pub use base::Fast;
pub use closing::Closing;
pub use flush::{Flush, FlushBuf};
pub use recv::{RecvBuf, RecvComm};
pub use send::{SendBuf, SendComm};
pub use work::Work;

pub(crate) use sizes::control_bytes;

pub use crate::request::Request;
